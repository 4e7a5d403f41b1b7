package simulation

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// reserved is a run of one policy that keeps a part of its limit for the first class, at a fleet in
// which nothing goes wrong: the others flood it, and the first class sends no more than is surely
// kept for it.
type reserved struct {
	*world
	kept account
	// burst and rate are the reserve, in tokens and tokens a microsecond.
	burst, rate float64
	first       map[uint32]bool
	// asked and denied count requests of the first class. passed counts the requests of other
	// classes that were let through; most is its upper bound.
	asked, denied, passed int
	most                  float64
	// idle are refusals while nodes held tokens of leases.
	idle int
	why  string
}

// algorithmsOf are the algorithms of each mode.
var algorithmsOf = map[string][]string{
	"local":      {"token_bucket", "fixed_window", "sliding_window", "sliding_window_counter", "sliding_log"},
	"leased":     {"token_bucket", "fixed_window", "sliding_window", "sliding_log"},
	"strict":     {"token_bucket", "fixed_window", "sliding_window", "sliding_window_counter", "sliding_log"},
	"optimistic": {"token_bucket"},
}

func newReserved(seed uint64, mode string) *reserved {
	w := choose(seed, nothing)
	s := shape{
		mode: mode, algorithm: pick(w.r, algorithmsOf[mode]...), quota: pick[int64](w.r, 20, 50, 100),
		window: pick(w.r, 2*quota.Second, 5*quota.Second), failure: `[{"share":"forever"}]`,
		kept: pick[int64](w.r, 20, 40, 60),
	}
	w.onlyLate, w.faults, w.hoarding, w.callers, w.policies = true, faults{}, 0, nil, []shape{s}
	w.span, w.way, w.interleaved = 12*quota.Second, min(w.way, 2*quota.Millisecond), false
	w.nodes = w.nodes[:1+w.r.IntN(min(4, len(w.nodes)))]
	if mode == "local" {
		w.nodes = w.nodes[:1]
	}
	g := &reserved{world: w, first: map[uint32]bool{}}
	part := s.quota * (100 - s.kept) / 100
	g.burst, g.rate = float64(s.quota-part), float64(s.quota-part)/float64(s.window)
	g.most = float64(part) * (1 + float64(w.span)/float64(s.window))
	if mode != "local" { // Granted tokens earn nothing while they may be used.
		g.burst -= 2 * float64(lease.Deadline) * float64(s.quota) / float64(s.window)
	}
	if s.algorithm != "token_bucket" { // Twice this fits into any window.
		g.burst, g.rate, g.most = g.burst/2, g.rate/2, float64(part)*float64(w.span)/float64(s.window)
	}
	w.watch = g.judge
	w.start()
	g.flood(s)
	g.offer()
	return g
}

// flood sends the requests of the other classes: several times the limit, and in bursts.
func (g *reserved) flood(s shape) {
	w, n := g.world, 1+g.r.IntN(4)
	w.after(quota.Span(g.r.ExpFloat64()*float64(n)*1e6/(4*s.rate())), func() {
		for range n {
			w.send(w.nodes[w.r.IntN(len(w.nodes))], w.r.IntN(w.workers), "/p0", "k", 1)
		}
		g.flood(s)
	})
}

// offer sends the reserve of the first class, at once or bit by bit.
func (g *reserved) offer() {
	w := g.world
	w.after(quota.Span(w.r.ExpFloat64()*pick(w.r, 0.2, 1, 5)/g.rate), func() {
		for range 1 + w.r.IntN(int(g.burst)+1) {
			a := &g.kept
			a.debt, a.last = max(0, a.debt-0.95*g.rate*float64(w.now-a.last)), w.now
			if a.debt+1 > g.burst {
				break
			}
			a.debt++
			g.asked++
			g.first[w.stream+1] = true
			w.send(w.nodes[w.r.IntN(len(w.nodes))], w.r.IntN(w.workers), "/p0", "k", 1, "x-first", "1")
		}
		g.offer()
	})
}

func (g *reserved) judge(d filtertest.Decision) {
	switch {
	case !g.first[d.Stream] && d.Allowed:
		g.passed++
	case g.first[d.Stream] && !d.Allowed:
		for _, n := range g.nodes {
			if held, _ := n.process.Held(d.Hits[0].Bucket); held > 0 {
				g.idle++
				return
			}
		}
		if g.denied++; g.why == "" {
			g.why = fmt.Sprintf("at %.3f s: %s", float64(g.now)/1e6, d.Reason)
		}
	}
}

// A flood of the other classes takes no token that is kept for the first class, in each mode and
// with each algorithm, and gets all other tokens. In leased mode no class gets the tokens that
// Envoys hold and do not use.
func TestAReserveIsKept(t *testing.T) {
	for mode, algorithms := range algorithmsOf {
		t.Run(mode, func(t *testing.T) {
			var mu sync.Mutex
			var asked, denied, passed, idle int
			var most float64
			why := map[string]string{}
			met := map[string]bool{}
			games := map[*world]*reserved{}
			start := func(seed uint64) *world {
				g := newReserved(seed, mode)
				mu.Lock()
				defer mu.Unlock()
				games[g.world] = g
				return g.world
			}
			runSeeds(*first, max(*seeds/50, 10), start, func(w *world) bool {
				mu.Lock()
				defer mu.Unlock()
				g := games[w]
				if w.problem != "" {
					t.Error(w.report())
				}
				lapsed := 0
				for _, n := range w.nodes {
					lapsed += int(n.process.Lapsed())
				}
				g.denied = max(g.denied-lapsed, 0)
				asked, denied, passed, most = asked+g.asked, denied+g.denied, passed+g.passed, most+g.most
				idle += g.idle
				met[w.policies[0].algorithm] = true
				if s := w.policies[0]; g.denied > 0 {
					why[s.algorithm] = fmt.Sprintf("seed %d, %d of %d, %+v, %s", w.seed, g.denied, g.asked, s, g.why)
				}
				return w.problem == ""
			})
			t.Logf("%d requests of the first class, %d refused, %d because of idle tokens; the others had %.1f %% of "+
				"their part", asked, denied, idle, 100*float64(passed)/most)
			if denied > 0 || idle > 0 && mode != "leased" || idle > asked/10 {
				t.Errorf("%d of %d of the first class were refused: %v", denied, asked, why)
			}
			if float64(passed) < 0.9*most || len(met) < len(algorithms) || asked == 0 {
				t.Errorf("the others had %d of %.0f; %d algorithms", passed, most, len(met))
			}
		})
	}
}

// document returns the set of a world: with classes where a policy keeps something for the first.
func (w *world) document(lines []string) string {
	text := `{"version":"weir/v1","policies":[` + strings.Join(lines, ",") + `]`
	for i := range w.policies {
		if w.policies[i].kept > 0 {
			text += `,"priorities":[{"name":"first","match":{"headers":[{"name":"x-first","present":true,"trusted":true}]}},
				{"name":"rest"}]`
			break
		}
	}
	return text + "}"
}
