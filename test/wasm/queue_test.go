package wasm

import (
	"math/rand/v2"
	"testing"
	"time"
)

// queue returns a policy of a leaky bucket: ten requests a second, of which burst may wait.
func queue(mode, burst string, more ...string) string {
	return limits("queue", mode, "10/1s burst "+burst, append(more, forAll, `"algorithm": "leaky_bucket"`)...)
}

// onTime fails the test unless an attempt ended when it was due: never early, and late by a tick at
// most.
func onTime(t *testing.T, a *attempt, due time.Duration) {
	t.Helper()
	if !a.done || !a.passed || a.ended < due || a.ended > due+quantum {
		t.Errorf("done %v, passed %v, at %v; it was due at %v", a.done, a.passed, a.ended, due)
	}
}

// A request that waits for its turn causes a tick at that time, and few further ticks.
func TestTicksComeWhenATurnDoes(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(queue("local", "4"))})
	ticks := func(d time.Duration) uint64 {
		before := w.nodes[0].Stats()
		w.advance(d)
		return w.nodes[0].Stats().Since(before).Entries["proxy_on_tick"]
	}
	idle := ticks(time.Second)
	w.request(0, 0, get())
	waits := w.request(0, 0, get())
	if n := ticks(100 * quantum); n > idle+2 {
		t.Errorf("%d ticks in 100 ms while a request waits, %d in a second before", n, idle)
	}
	onTime(t, waits, waits.sent+100*quantum)
	if n := ticks(time.Second); n > idle+1 {
		t.Errorf("%d ticks in a second after, %d before", n, idle)
	}
}

// Whatever comes and goes, requests leave two workers in no interval faster than the rate, each
// after no longer than its answer said.
func TestQueueUnderLoad(t *testing.T) {
	const seed = 3
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("queue", "local", "100/1s burst 20", forAll, `"algorithm": "leaky_bucket"`))})
	r := rand.New(rand.NewPCG(seed, 1))
	law := newLaw(t, 100, 1_000_000, 1)
	var open []*attempt
	passed, left, refused := 0, 0, 0
	const span = 20 * time.Second
	w.run(span, func() {
		still := open[:0]
		leaving := 0
		for _, a := range open {
			switch {
			case !a.done && r.IntN(400) == 0:
				a.stream.Cancel()
				a.done = true
				left++
			case !a.done:
				still = append(still, a)
			case a.passed:
				leaving++
				passed++
				if d := w.decision(a); a.ended > a.sent+d.delayed+quantum {
					t.Errorf("seed %d: asked to wait %v, waited %v", seed, d.delayed, a.ended-a.sent)
				}
			default:
				refused++
			}
		}
		open = still
		if leaving > 1 {
			t.Errorf("seed %d: %d leave at once at %v", seed, leaving, w.now)
		}
		if leaving > 0 {
			law.use(w.now, 1)
		}
		for range r.IntN(3) * r.IntN(2) {
			open = append(open, w.request(0, r.IntN(2), get()))
		}
	})
	t.Logf("%d passed, %d went away, %d refused", passed, left, refused)
	// A tick may be a quantum late, and the next in time.
	if over := law.params.TokensIn(law.worst); over > 1 {
		t.Errorf("seed %d: %d more than the rate", seed, over)
	}
	if passed < 100*int(span/time.Second)*9/10 || left < 50 || refused < 50 {
		t.Errorf("seed %d: %d passed, %d left, %d refused", seed, passed, left, refused)
	}
}

// One VM holds back maxWaiting requests. The next request is refused, and takes no place.
func TestHeldRequestsAreBounded(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(limits("queue", "local", "1000/1s burst 3000", forAll, `"algorithm": "leaky_bucket"`, `"max_wait": "10s"`))})
	for i := range maxWaiting + 1 {
		if a := w.request(0, 0, get()); a.done != (i == 0) {
			t.Fatalf("request %d: %+v", i, a)
		}
	}
	for range 10 {
		if a := w.request(0, 0, get()); !a.done || a.passed || w.decision(a).reason != "too_many_waiting" {
			t.Fatalf("one more than may wait: %+v", a)
		}
	}
	if n := w.counter("requests.too_many_waiting"); n != 10 {
		t.Errorf("%d counted as too many", n)
	}
	w.advance((maxWaiting + 10) * quantum)
	if len(w.waiting) != 0 {
		t.Errorf("%d wait for ever", len(w.waiting))
	}
	if a := w.request(0, 0, get()); !a.passed {
		t.Error("the refused requests took places")
	}
}
