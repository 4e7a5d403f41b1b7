package adaptive_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
)

// scene is a way in which an upstream gives less for a while.
type scene struct {
	name    string
	service func(*rand.Rand) float64
	changes []change
}

// The phases of each scene: all of the capacity, two fifths of it, and all again.
var phases = []quota.Instant{0, 40_000_000, 80_000_000}

var scenes = []scene{
	{"fewer servers", exponential(20_000), []change{{phases[1], 16, 1}, {phases[2], 40, 1}}},
	{"slower servers", exponential(20_000), []change{{phases[1], 40, 2.5}, {phases[2], 40, 1}}},
	{"fewer servers, uneven requests", lognormal(20_000, 0.7), []change{{phases[1], 16, 1}, {phases[2], 40, 1}}},
	{"slower servers, even requests", lognormal(20_000, 0.3), []change{{phases[1], 40, 2.5}, {phases[2], 40, 1}}},
}

// settling is how many windows a limit may take behind a change.
const settling = 10

// verdict is what came of a run.
type verdict struct {
	// goodput is the part of the best fixed limit's, critical that of the first class's requests
	// that were let through.
	goodput, critical float64
	// swing is the deviation from the mean after settling that 19 windows of 20 do not exceed, in any
	// phase.
	swing float64
	// second is the part of the second class's requests that were let through: all of it fits but
	// while the capacity is low.
	second float64
	// crowd is the largest mean limit of a phase after settling, in servers of the upstream.
	crowd float64
}

func (v verdict) problems() (list []string) {
	if v.goodput < 0.95 {
		list = append(list, fmt.Sprintf("goodput %.1f %% of the best fixed limit's", 100*v.goodput))
	}
	if v.critical < 0.999 {
		list = append(list, fmt.Sprintf("critical %.3f %% served", 100*v.critical))
	}
	if v.swing > 0.1 {
		list = append(list, fmt.Sprintf("swings by %.1f %%", 100*v.swing))
	}
	if v.second < 0.8 {
		list = append(list, fmt.Sprintf("second class %.1f %% served", 100*v.second))
	}
	if v.crowd > 3 {
		list = append(list, fmt.Sprintf("%.1f requests for each server", v.crowd))
	}
	return list
}

func judge(t *testing.T, s scene, seed uint64, f *found, best []int) verdict {
	t.Helper()
	m := newModel(seed)
	m.service, m.gate = s.service, f
	m.run(s.changes...)
	v := verdict{critical: float64(m.served[0]) / float64(m.came[0])}
	v.goodput = float64(sum(m.good)) / float64(sum(best))
	v.second = float64(m.served[1]) / float64(m.came[1])
	servers := []int{40, s.changes[0].servers, s.changes[1].servers}
	for i, from := range phases {
		to := m.end
		if i+1 < len(phases) {
			to = phases[i+1]
		}
		mean, off := swing(f.values, from, to)
		v.swing, v.crowd = max(v.swing, off), max(v.crowd, mean/float64(servers[i]))
	}
	t.Logf("%s, seed %d: goodput %.1f %%, critical %.3f %%, second %.1f %%, swing %.1f %%, limit %s",
		s.name, seed, 100*v.goodput, 100*v.critical, 100*v.second, 100*v.swing, trace(f.values))
	return v
}

// swing is the mean of the limit once it may be expected to have settled, and how far it goes from
// that.
func swing(values []value, from, to quota.Instant) (mean, off float64) {
	var settled []float64
	seen := 0
	for _, v := range values {
		if v.at <= from || v.at > to {
			continue
		}
		if seen++; seen > settling {
			settled = append(settled, v.limit)
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
func trace(values []value) (said string) {
	for _, from := range phases {
		said += "|"
		shown := 0
		for _, v := range values {
			if v.at > from && shown < 12 {
				said += fmt.Sprintf(" %.0f", v.limit)
				shown++
			}
		}
	}
	return said
}

func sum(counts []int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// bestFixed is the goodput of the fixed limit that is best in each phase, by second.
func bestFixed(s scene, seed uint64) (best []int) {
	var phase [3]int
	var seconds [3][]int
	for _, limit := range []int{60, 100} {
		m := newModel(seed)
		m.service, m.gate = s.service, fixed(limit)
		m.run(s.changes...)
		for i := range phases {
			from := int(phases[i] / 1_000_000)
			if part := m.good[from : from+40]; sum(part) > phase[i] {
				phase[i], seconds[i] = sum(part), part
			}
		}
	}
	for _, part := range seconds {
		best = append(best, part...)
	}
	return best
}

// The limit finds an upstream's capacity, again when that changes, and sheds the least important.
func TestTheLimitFollowsTheCapacity(t *testing.T) {
	for _, s := range scenes {
		for seed := uint64(1); seed <= 2; seed++ {
			best := bestFixed(s, seed)
			for _, problem := range judge(t, s, seed, newFound(1+int(seed)), best).problems() {
				t.Errorf("%s, seed %d: %s", s.name, seed, problem)
			}
		}
	}
}

// What the model is for: each of these faults shows.
func TestPlantedFaultsShow(t *testing.T) {
	faults := map[string]fault{
		"the time that Weir holds a request counts as the upstream's": ownWaitCounts,
		"one worker decides by its own window":                        oneWorkerAlone,
		"what a worker has seen is merged again and again":            twice,
		"the limit starts anew from time to time":                     forgetful,
		"classes do not count":                                        classBlind,
		"the limit never falls":                                       neverFalls,
		"what the limit refuses is not counted":                       refusalsUnseen,
	}
	for name, planted := range faults {
		found := false
		for _, s := range scenes[:2] {
			f := newFound(4)
			f.planted = planted
			found = found || len(judge(t, s, 1, f, bestFixed(s, 1)).problems()) > 0
		}
		if !found {
			t.Errorf("not found: %s", name)
		}
	}
}

// A service that is asked for less than it can give loses no request, however its load and its
// latency go up and down.
func TestAQuietServiceIsNeverShed(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		m := newModel(seed)
		m.offered = 20 + 300*m.rng.Float64()
		m.service = lognormal(20_000, 1.5*m.rng.Float64())
		f := newFound(2)
		m.gate = f
		m.run(change{20_000_000, 40, 2}, change{40_000_000, 40, 0.3}, change{60_000_000, 40, 1.5})
		if sum(m.came) != sum(m.served) {
			t.Errorf("seed %d: %d of %d requests were shed, at %.0f a second",
				seed, sum(m.came)-sum(m.served), sum(m.came), m.offered)
		}
	}
}

// A late worker and a busy upstream ask for nothing at first, then stand in the way of shedding
// less, and then ask for more, at most for all.
func TestPressures(t *testing.T) {
	for _, c := range []struct {
		name string
		got  adaptive.Pressure
		want float64
	}{
		{"a worker in time", adaptive.Late(0), -1},
		{"a worker a little late", adaptive.Late(49 * quota.Millisecond), 0},
		{"a late worker", adaptive.Late(50 * quota.Millisecond), 0.1},
		{"a worker that stands still", adaptive.Late(quota.Second), 1},
		{"an idle upstream", adaptive.Busy(0.5), -1},
		{"a used upstream", adaptive.Busy(0.85), 0},
		{"a busy upstream", adaptive.Busy(0.9), 0.1},
		{"an upstream beyond its capacity", adaptive.Busy(1.5), 1},
	} {
		if diff := float64(c.got) - c.want; diff < -1e-9 || diff > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}
