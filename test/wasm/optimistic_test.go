package wasm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// optimisticLaw is the promise of an optimistic limit: a token bucket whose burst is larger by what
// nodes can use beyond it.
func optimisticLaw(t *testing.T, n int64, window quota.Span, burst, nodes int64) *law {
	t.Helper()
	l := newLaw(t, n, window, burst)
	over := lease.Overshoot(l.params, nodes)
	l.params.Burst += over
	return l
}

// Everything at once on every node reaches the bound and does not pass it; what was used too much
// is paid back before anything else passes.
func TestOptimisticBoundIsReachedAndPaidBack(t *testing.T) {
	for _, nodes := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			w := newWorld(t, fleet{nodes: nodes, up: 10 * time.Millisecond, down: 10 * time.Millisecond,
				set: setOf(limits("api", "optimistic", "100/10s", thenDeny))})
			for node := range nodes {
				w.ask(node, 0, get("x-key", "a"))
			}
			w.advance(30 * time.Second)
			l := optimisticLaw(t, 100, 10*quota.Second, 100, int64(nodes))
			game := &game{world: w, law: l}
			// The first node uses up what there is; then the others, who have heard nothing of it,
			// follow.
			w.run(600*time.Millisecond, func() {
				for range 3 {
					game.send(0, 0, 1)
				}
				game.count()
			})
			for range 150 {
				for node := range nodes {
					game.send(node, 0, 1)
				}
			}
			game.count()
			if reached := float64(l.used) / (float64(l.params.Burst) + 6); reached < 0.9 {
				t.Errorf("%d passed at once, %d may", l.used, l.params.Burst)
			}
			w.run(60*time.Second, func() {
				if w.now.Milliseconds()%100 == 0 {
					for node := range nodes {
						game.send(node, 0, 1)
					}
				}
				game.count()
			})
			l.check(t, fmt.Sprint(nodes, " nodes"))
			t.Logf("%d nodes: %d passed", nodes, l.used)
			// Burst and 60 s of the rate; the excess was paid back out of that.
			if l.used < 680 || l.used > 720+l.params.Burst-100 {
				t.Errorf("%d passed in 60 s, burst and rate are 700", l.used)
			}
		})
	}
}

// Random loads, delays and losses: no interval sees more than the law allows. Requests beyond the
// slack wait for answers, of which one in seven comes too late here: what such a one has granted is
// lost.
func TestOptimisticAgainstAnAdversary(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			w := newWorld(t, fleet{nodes: 3, workers: 2, set: setOf(limits("api", "optimistic", "50/1s", thenDeny))})
			w.plane.lag = func() (up, down time.Duration) {
				if r.IntN(10) == 0 {
					return time.Hour, time.Hour // lost
				}
				return millis(r, 1, 40), millis(r, 1, 40)
			}
			l := optimisticLaw(t, 50, quota.Second, 50, 3)
			game := &game{world: w, law: l}
			w.run(20*time.Second, func() {
				if r.IntN(30) == 0 {
					node := r.IntN(3)
					for range r.IntN(80) {
						game.send(node, r.IntN(2), 1)
					}
				}
				game.count()
			})
			l.check(t, "random")
			t.Logf("%d of %d passed, %.0f may", l.used, game.sent, l.most(20*time.Second))
			if game.waited == 0 || float64(l.used) < 0.5*l.most(20*time.Second) {
				t.Errorf("%d waited, %d passed", game.waited, l.used)
			}
		})
	}
}

// A refusal has an end that is known, so a blocked flood never leaves the node; and steady traffic
// is reported each 100 ms at most, when a sixteenth of the slack is used (50 000 tokens here).
func TestOptimisticAsksLittle(t *testing.T) {
	w := newWorld(t, fleet{nodes: 2, set: setOf(limits("api", "optimistic", "10/600s", thenDeny))})
	for range 40 {
		w.ask(0, 0, get("x-key", "a"))
		w.advance(10 * time.Millisecond)
	}
	w.advance(200 * time.Millisecond)
	before := w.plane.requests
	for range 1000 {
		if a := w.ask(0, 0, get("x-key", "a")); a.passed {
			t.Fatal("a used-up bucket let a request pass")
		}
	}
	w.advance(time.Second)
	if n := w.plane.requests - before; n > 0 {
		t.Errorf("1000 refused requests made %d calls", n)
	}
	w = newWorld(t, fleet{nodes: 2, set: setOf(limits("api", "optimistic", "100000/1s", thenDeny))})
	w.run(5*time.Second, func() {
		for range 5 {
			w.request(0, 0, get("x-key", "a"))
		}
	})
	if n := w.plane.requests; n < 6 || n > 14 {
		t.Errorf("5000 requests a second made %d reports in 5 s", n)
	}
	w.plane.requests = 0
	w.run(time.Second, func() {
		for range 40 {
			w.request(0, 0, get("x-key", "a"))
		}
	})
	if n := w.plane.requests; n < 7 || n > 13 {
		t.Errorf("40 000 requests a second made %d reports a second", n)
	}
}

// While the control plane is away the node goes on within its slack, then by its failure ladder;
// what was used meanwhile is reported when it is back.
func TestOptimisticWithoutTheControlPlane(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "optimistic", "10/600s", `"on_failure": {"then": "allow"}`))})
	w.ask(0, 0, get("x-key", "a"))
	w.advance(time.Second)
	w.plane.down = true
	passed := 0
	w.run(5*time.Second, func() {
		if w.now.Milliseconds()%50 == 0 {
			if a := w.request(0, 0, get("x-key", "a")); a.passed {
				passed++
			}
		}
	})
	if passed < 80 {
		t.Errorf("%d of 100 passed; after the slack the ladder allows", passed)
	}
	w.plane.down = false
	w.advance(3 * time.Second)
	var reported int64
	for _, b := range w.plane.ledgers {
		reported += b.Params.TokensIn(b.Debt)
	}
	if reported < 9 {
		t.Errorf("the control plane knows of %d tokens; 10 were used by the bucket", reported)
	}
	if a := w.ask(0, 0, get("x-key", "a")); a.passed {
		t.Error("the used-up bucket let a request pass")
	}
}
