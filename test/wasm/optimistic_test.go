package wasm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// optimisticLaw returns the promise of an optimistic limit: a token bucket whose burst is larger by
// the tokens that nodes can use beyond it.
func optimisticLaw(t *testing.T, n int64, window quota.Span, burst, nodes int64) *law {
	t.Helper()
	l := newLaw(t, n, window, burst)
	over := lease.Overshoot(l.params, nodes)
	l.params.Burst += over
	return l
}

// A full load at once on every node reaches the bound and does not pass it. The tokens that were
// used too much are paid back before any other request passes.
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
			// The first node uses all tokens. Then the other nodes, which do not know it yet,
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
// slack wait for answers, of which one in seven comes too late here: the tokens of a late answer
// are lost.
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

// A caller of an optimistic limit waits as long as the answer says. At one Envoy it passes then,
// whatever it costs. At the next Envoy, which may know more, it may wait in vain once.
func TestOptimisticWaits(t *testing.T) {
	for _, c := range []struct{ nodes, inVain int }{{1, 0}, {2, 2}, {3, 3}} {
		most := 0
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 9))
			w := newWorld(t, fleet{nodes: c.nodes, set: setWith(`"headers": {"legacy": "discord"}`,
				limits("p", "optimistic", "100/1m", forAll, costHeader, thenDeny))})
			caller := &client{t: t, w: w}
			most = max(most, caller.waitsInVain(r))
		}
		if t.Logf("%d nodes: %d waits in vain at most", c.nodes, most); most > c.inVain {
			t.Errorf("%d nodes: %d waits in vain, want %d at most", c.nodes, most, c.inVain)
		}
	}
}

// waitsInVain sends requests of one cost until the bucket is used up, then waits as the answers
// say, some times over, and returns how often in a row that was in vain.
func (c *client) waitsInVain(r *rand.Rand) (most int) {
	cost := []int{1, 1, 5, 20, 60}[r.IntN(5)]
	pause := millis(r, 0, 40)
	for range 8 {
		a := c.ask(cost)
		for sent := 0; a.passed; sent++ {
			if sent > 200 {
				c.t.Fatal("nothing is refused")
			}
			c.w.advance(pause)
			a = c.ask(cost)
		}
		inVain := 0
		for c.w.advance(a.wait); ; c.w.advance(a.wait) {
			if a = c.ask(cost); a.passed {
				break
			}
			if inVain++; inVain > 19 {
				c.t.Fatalf("refused at %v although it waited as asked: %+v", c.w.now, c.seen[len(c.seen)-20:])
			}
		}
		most = max(most, inVain)
	}
	return most
}
