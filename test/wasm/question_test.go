package wasm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/quota"
)

// An optimistic limit passes what costs more than an Envoy may use alone: the control plane decides
// on it, from the first request on. Together such requests use up the bucket, and no more than the
// law allows.
func TestOptimisticTakesWhatIsDear(t *testing.T) {
	const nodes = 3
	for _, cost := range []int64{2, 26, 60, 100} {
		t.Run(fmt.Sprint(cost), func(t *testing.T) {
			w := newWorld(t, fleet{nodes: nodes,
				set: setOf(limits("api", "optimistic", "100/1m", thenDeny, costHeader))})
			l := optimisticLaw(t, 100, quota.Minute, 100, nodes)
			game := &game{world: w, law: l}
			for range 40 {
				for node := range nodes {
					game.send(node, 0, cost)
				}
				w.run(100*time.Millisecond, game.count)
				if l.used < cost {
					t.Fatal("nothing of an untouched bucket passed")
				}
			}
			if l.check(t, "dear requests"); l.used <= 100-cost {
				t.Errorf("%d of 100 were used", l.used)
			}
		})
	}
}

// The same bound holds where costs are mixed and answers are late, change places or are lost.
func TestOptimisticDearAgainstAnAdversary(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			w := newWorld(t, fleet{nodes: 3, workers: 2,
				set: setOf(limits("api", "optimistic", "50/1s", thenDeny, costHeader))})
			w.plane.lag = func() (up, down time.Duration) {
				if r.IntN(10) == 0 {
					return time.Hour, time.Hour // lost
				}
				return millis(r, 1, 30), millis(r, 1, 30)
			}
			l := optimisticLaw(t, 50, quota.Second, 50, 3)
			game := &game{world: w, law: l}
			w.run(20*time.Second, func() {
				if r.IntN(30) == 0 {
					node := r.IntN(3)
					for range r.IntN(20) {
						game.send(node, r.IntN(2), []int64{1, 1, 1, 7, 13, 40, 50}[r.IntN(7)])
					}
				}
				game.count()
			})
			l.check(t, "mixed costs")
			t.Logf("%d of %.0f used by %d requests; %d waited, %v at most", l.used, l.most(20*time.Second), game.sent,
				game.waited, game.longest)
			if game.waited == 0 || game.longest > 60*time.Millisecond {
				t.Errorf("%d waited, %v at most", game.waited, game.longest)
			}
		})
	}
}

// A caller of an optimistic limit waits as long as the answer says. At one Envoy it passes then,
// whatever it costs. Going from one Envoy to the next it can meet one that knows more, so it may
// wait in vain once at each.
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
