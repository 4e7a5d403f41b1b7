package upstreamtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// Scene is a way in which an upstream gives less for a while.
type Scene struct {
	Name    string
	Service func(*rand.Rand) float64
	Changes []Change
}

// phases are the starts of the phases of each scene: all of the capacity, two fifths of it, and all
// again.
var phases = []quota.Instant{0, 40_000_000, 80_000_000}

// Scenes are the scenes that a limit is judged by.
var Scenes = []Scene{
	{"fewer servers", Exponential(20_000), []Change{{phases[1], 16, 1}, {phases[2], 40, 1}}},
	{"slower servers", Exponential(20_000), []Change{{phases[1], 40, 2.5}, {phases[2], 40, 1}}},
	{"fewer servers, uneven requests", Lognormal(20_000, 0.7), []Change{{phases[1], 16, 1}, {phases[2], 40, 1}}},
	{"slower servers, even requests", Lognormal(20_000, 0.3), []Change{{phases[1], 40, 2.5}, {phases[2], 40, 1}}},
}

// settling is how many windows a limit may take behind a change.
const settling = 10

// Verdict is the result of a run.
type Verdict struct {
	// Goodput is the goodput as a part of the best fixed limit's goodput. Critical is the part of
	// the first class's requests that were let through.
	Goodput, Critical float64
	// Swing is the deviation from the mean after settling that 19 windows of 20 do not exceed, in
	// any phase.
	Swing float64
	// Second is the part of the second class's requests that were let through: all of it fits but
	// while the capacity is low.
	Second float64
	// Crowd is the largest mean limit of a phase after settling, in servers of the upstream.
	Crowd float64
}

// Problems are the bars that the run has missed.
func (v Verdict) Problems() (list []string) {
	if v.Goodput < 0.95 {
		list = append(list, fmt.Sprintf("goodput %.1f %% of the best fixed limit's", 100*v.Goodput))
	}
	if v.Critical < 0.999 {
		list = append(list, fmt.Sprintf("critical %.3f %% served", 100*v.Critical))
	}
	if v.Swing > 0.1 {
		list = append(list, fmt.Sprintf("swings by %.1f %%", 100*v.Swing))
	}
	if v.Second < 0.8 {
		list = append(list, fmt.Sprintf("second class %.1f %% served", 100*v.Second))
	}
	if v.Crowd > 3 {
		list = append(list, fmt.Sprintf("%.1f requests for each server", v.Crowd))
	}
	return list
}

// Value is the limit at the end of a window.
type Value struct {
	At    quota.Instant
	Limit float64
}

// Judge runs a scene. values returns the values of the gate's limit afterwards, best is BestFixed.
func Judge(t testing.TB, s Scene, seed uint64, gate Gate, values func() []Value, best []int) Verdict {
	t.Helper()
	m := New(seed)
	m.Service, m.Gate = s.Service, gate
	m.Run(s.Changes...)
	v := Verdict{Critical: float64(m.Served[0]) / float64(m.Came[0])}
	v.Goodput = float64(sum(m.Good)) / float64(sum(best))
	v.Second = float64(m.Served[1]) / float64(m.Came[1])
	servers := []int{40, s.Changes[0].Servers, s.Changes[1].Servers}
	for i, from := range phases {
		to := m.End
		if i+1 < len(phases) {
			to = phases[i+1]
		}
		mean, off := swing(values(), from, to)
		v.Swing, v.Crowd = max(v.Swing, off), max(v.Crowd, mean/float64(servers[i]))
	}
	t.Logf("%s, seed %d: goodput %.1f %%, critical %.3f %%, second %.1f %%, swing %.1f %%, limit %s",
		s.Name, seed, 100*v.Goodput, 100*v.Critical, 100*v.Second, 100*v.Swing, trace(values()))
	return v
}

// swing is the mean of the limit once it may be expected to have settled, and how far it goes from
// that.
func swing(values []Value, from, to quota.Instant) (mean, off float64) {
	var settled []float64
	seen := 0
	for _, v := range values {
		if v.At <= from || v.At > to {
			continue
		}
		if seen++; seen > settling {
			settled = append(settled, v.Limit)
		}
	}
	for _, v := range settled {
		mean += v / float64(len(settled))
	}
	all := []float64{0}
	for _, v := range settled {
		all = append(all, math.Abs(v/mean-1))
	}
	slices.Sort(all)
	return mean, all[len(all)*19/20]
}

// trace shows the limit around the changes.
func trace(values []Value) (said string) {
	for _, from := range phases {
		said += "|"
		shown := 0
		for _, v := range values {
			if v.At > from && shown < 12 {
				said += fmt.Sprintf(" %.0f", v.Limit)
				shown++
			}
		}
	}
	return said
}

// sum of counts.
func sum(counts []int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// BestFixed is the goodput of the fixed limit that is best in each phase, by second.
func BestFixed(s Scene, seed uint64) (best []int) {
	var phase [3]int
	var seconds [3][]int
	for _, limit := range []int{60, 100} {
		m := New(seed)
		m.Service, m.Gate = s.Service, Fixed(limit)
		m.Run(s.Changes...)
		for i := range phases {
			from := int(phases[i] / 1_000_000)
			if part := m.Good[from : from+40]; sum(part) > phase[i] {
				phase[i], seconds[i] = sum(part), part
			}
		}
	}
	for _, part := range seconds {
		best = append(best, part...)
	}
	return best
}

// Quiet are changes of an upstream that is asked for less than it can give all the same.
var Quiet = []Change{{20_000_000, 40, 2}, {40_000_000, 40, 0.3}, {60_000_000, 40, 1.5}}

// Lost is how many requests did not go on, of how many.
func (m *Model) Lost() (lost, of int) { return sum(m.Came) - sum(m.Served), sum(m.Came) }
