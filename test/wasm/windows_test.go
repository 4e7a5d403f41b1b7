package wasm

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Leased and strict windows over several nodes: never more than the quota in any window, of a fixed
// one in any of its grid, while callers take all there is.
func TestCentralWindowsUnderOverload(t *testing.T) {
	for _, c := range []struct {
		mode, algorithm string
		least           int // of 600 in each 3 s
	}{
		{"leased", "fixed_window", 500}, {"leased", "sliding_window", 400}, {"leased", "sliding_log", 170},
		{"strict", "fixed_window", 550}, {"strict", "sliding_window", 500}, {"strict", "sliding_log", 190},
		{"strict", "sliding_window_counter", 500},
	} {
		t.Run(c.mode+" "+c.algorithm, func(t *testing.T) {
			const seed, window = 5, 3 * time.Second
			rate, most := "600/3s", 600
			if c.algorithm == "sliding_log" {
				rate, most = "200/3s", 200
			}
			w := newWorld(t, fleet{nodes: 2, workers: 2, set: setOf(limits("window", c.mode, rate, forAll, thenDeny, `"algorithm": "`+c.algorithm+`"`))})
			r := rand.New(rand.NewPCG(seed, 3))
			w.plane.lag = func() (up, down time.Duration) { return millis(r, 1, 3), millis(r, 1, 3) }
			var open []*attempt
			var passed []time.Duration
			const span = 15 * time.Second
			w.run(span, func() {
				still := open[:0]
				for _, a := range open {
					if !a.done {
						still = append(still, a)
					} else if a.passed {
						passed = append(passed, a.ended)
					}
				}
				open = still
				open = append(open, w.request(r.IntN(2), r.IntN(2), get()))
			})
			t.Logf("%d passed in %v, %d calls", len(passed), span, w.plane.requests)
			if n := len(passed) * int(window) / int(span); n < c.least {
				t.Errorf("%d passed in a window, want at least %d", n, c.least)
			}
			switch c.algorithm {
			case "fixed_window":
				if n := mostInGrid(passed, window); n > most {
					t.Errorf("wherever the grid lies, %d are in one of its windows", n)
				}
			case "sliding_window_counter":
				most = 2*most - 1
				fallthrough
			default:
				for i := most; i < len(passed); i++ {
					if passed[i]-passed[i-most] < window {
						t.Fatalf("seed %d: %d within %v", seed, most+1, passed[i]-passed[i-most])
					}
				}
			}
		})
	}
}

// mostInGrid is the largest number of uses in one window of a grid, for the grid that makes it
// smallest: the test does not know where the bucket's own lies.
func mostInGrid(uses []time.Duration, window time.Duration) int {
	least := len(uses)
	for offset := time.Duration(0); offset < window; offset += quantum {
		counts, most := map[time.Duration]int{}, 0
		for _, at := range uses {
			n := (at + offset) / window
			counts[n]++
			most = max(most, counts[n])
		}
		least = min(least, most)
	}
	return least
}

// A candidate is counted apart, for its policy, and changes nothing: also where the enforced limit
// refuses.
func TestCandidateIsCounted(t *testing.T) {
	for _, mode := range []string{"local", "leased", "strict", "optimistic"} {
		w := newWorld(t, fleet{nodes: 1, set: setOf(
			limits("api", mode, "10/1h", forAll, `"candidate": {"limit": {"quota": 3, "window": "1h"}}`),
			limits("draft", "local", "2/1h", forAll, `"candidate": {"limit": {"quota": 20, "window": "1h"}}`, `"match": {"headers": [{"name": "x-draft", "present": true}]}`))})
		for range 6 {
			if a := w.ask(0, 0, get()); !a.passed {
				t.Fatalf("%s: %+v", mode, w.decision(a))
			}
		}
		w.advance(20 * quantum)
		counted := uint64(0)
		for _, outcome := range []string{"allowed", "refused", "undetermined"} {
			n := w.counter("candidate." + outcome)
			counted += n
			if of := counter(w.nodes[0], "policy.api.outcome.candidate_"+outcome+".decisions"); of != n {
				t.Errorf("%s: %d %s, of which %d for the policy", mode, n, outcome, of)
			}
		}
		allowed, refused := w.counter("candidate.allowed"), w.counter("candidate.refused")
		if counted != 6 || allowed != 3 || refused != 3 {
			t.Errorf("%s: %d counted, %d allowed, %d refused", mode, counted, allowed, refused)
		}
		// The looser draft goes on counting where its own policy refuses alone.
		for range 4 {
			w.ask(0, 0, get("x-draft", "1"))
		}
		w.advance(20 * quantum)
		if n := counter(w.nodes[0], "policy.draft.outcome.candidate_allowed.decisions"); mode == "local" && n != 4 {
			t.Errorf("%s: the looser draft allowed %d of 4", mode, n)
		}
		if n := counter(w.nodes[0], "policy.draft.outcome.refused.decisions"); n != 2 {
			t.Errorf("%s: %d refused", mode, n)
		}
	}
}
