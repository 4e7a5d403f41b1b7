package wasm

import (
	"testing"
	"time"
)

// A limit that does not follow the calendar uses a clock that no operator sets. A bucket that is
// used up stays so when the wall clock of the machine is set, and is full when its time has passed.
func TestTheWallClockChangesNoLimit(t *testing.T) {
	for _, c := range []struct{ mode, algorithm string }{
		{"local", "token_bucket"}, {"local", "fixed_window"}, {"local", "sliding_window"}, {"local", "sliding_log"},
		{"local", "sliding_window_counter"}, {"leased", "token_bucket"}, {"strict", "token_bucket"},
	} {
		for _, step := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour} {
			w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("p", c.mode, "10/10s", `"algorithm": "`+c.algorithm+`"`))})
			passed := func() (n int) {
				for i := range 30 {
					if w.ask(0, i%2, get("x-key", "a")).passed {
						n++
					}
				}
				return n
			}
			if n := passed(); n != 10 {
				t.Fatalf("%v: %d of 10 passed at first", c, n)
			}
			w.nodes[0].StepWallClock(step)
			if n := passed(); n != 0 {
				t.Errorf("%v: %d passed at once after a step by %v", c, n, step)
			}
			w.advance(20 * time.Second)
			if n := passed(); n != 10 {
				t.Errorf("%v: %d of 10 passed, 20 s after a step by %v", c, n, step)
			}
		}
	}
}
