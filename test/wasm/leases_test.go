package wasm

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// millis draws a span of whole milliseconds.
func millis(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(to-from+1)) * time.Millisecond
}

// game sends requests and checks the admitted requests against a law.
type game struct {
	world   *world
	law     *law
	open    []*attempt
	costs   map[*attempt]int64
	sent    int
	waited  int
	longest time.Duration
}

func (g *game) send(node, worker int, cost int64) {
	request := get("x-key", "a")
	if cost != 1 {
		request.Headers = append(request.Headers, [2]string{"x-cost", strconv.FormatInt(cost, 10)})
	}
	a := g.world.request(node, worker, request)
	g.sent++
	if g.costs == nil {
		g.costs = map[*attempt]int64{}
	}
	if g.costs[a] = cost; !a.done {
		g.waited++
	}
	g.open = append(g.open, a)
}

// count notes the decisions of this step.
func (g *game) count() {
	still := g.open[:0]
	for _, a := range g.open {
		if !a.done {
			still = append(still, a)
			continue
		}
		if a.passed {
			g.law.use(a.ended, g.costs[a])
		}
		g.longest = max(g.longest, a.ended-a.sent)
		delete(g.costs, a)
	}
	g.open = still
}

// Random loads, costs, delays and losses: whatever happens, no interval sees more than the law
// allows.
func TestLeasedBucketAgainstAnAdversary(t *testing.T) {
	for _, c := range []struct {
		mode, rate string
		n          int64
		window     quota.Span
		burst      int64
	}{
		{"leased", "200/1s burst 300", 200, quota.Second, 300},
		{"leased", "100/10s", 100, 10 * quota.Second, 100},
		{"leased", "60/1m burst 20", 60, quota.Minute, 20},
		{"leased", "50/1s burst 10", 50, quota.Second, 10}, // refills within a second: every request asks
		{"strict", "200/1s burst 300", 200, quota.Second, 300},
	} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(c.mode, " ", c.rate, " seed ", seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 7))
				w := newWorld(t, fleet{nodes: 3, workers: 2, seed: seed,
					set: setOf(limits("api", c.mode, c.rate, thenDeny, costHeader))})
				w.plane.lag = func() (up, down time.Duration) {
					switch r.IntN(10) {
					case 0:
						return millis(r, 1, 60), millis(r, 1, 300) // too late, and kept tokens late
					case 1:
						return millis(r, 1, 5), time.Hour // the reply is lost
					}
					return millis(r, 1, 10), millis(r, 1, 10)
				}
				l := newLaw(t, c.n, c.window, c.burst)
				g := &game{world: w, law: l}
				node, pause := 0, time.Duration(0)
				w.run(12*time.Second, func() {
					g.count()
					if w.now < pause {
						return
					}
					if r.IntN(200) == 0 {
						pause = w.now + millis(r, 50, 700)
					}
					if r.IntN(30) == 0 {
						node = r.IntN(3)
					}
					for range r.IntN(3) {
						g.send(node, r.IntN(2), 1+max(0, r.Int64N(c.burst/2+1)-c.burst/3))
					}
				})
				l.check(t, c.rate)
				if used := float64(l.used) / l.most(12*time.Second); used < 0.3 {
					t.Errorf("only %.0f %% of the law's tokens have passed: the test shows little", 100*used)
				}
			})
		}
	}
}

// A node hoards its lent tokens, is silent for a while, and spends them in the moment in which
// another node drains the bucket. Tokens that have expired for the control plane must have expired
// on the node, however long the reply took.
func TestHoardedTokensExpire(t *testing.T) {
	for _, late := range []time.Duration{quantum, 60 * quantum, 200 * quantum} {
		t.Run(fmt.Sprint("replies after ", late), func(t *testing.T) {
			w := newWorld(t, fleet{nodes: 2, workers: 2,
				set: setOf(limits("api", "leased", "200/1s burst 300", thenDeny))})
			w.plane.lease = func(call *envoytest.Call, req wire.LeaseRequest) bool {
				if req.Items[0].Waiting > 0 {
					return false
				}
				w.after(quantum, func() {
					call.Respond(late, 200, nil, wire.AppendLeaseReply(nil, w.plane.Grant(0, req)))
				})
				return true
			}
			l := newLaw(t, 200, quota.Second, 300)
			g := &game{world: w, law: l}
			burst := func(node, n int) {
				for i := range n {
					g.send(node, i%2, 1)
				}
			}
			for silence := time.Duration(0); silence <= 500*time.Millisecond; silence += 7 * quantum {
				w.run(500*time.Millisecond, func() {
					g.count()
					if w.now%(5*quantum) == 0 {
						burst(0, 1)
					}
				})
				w.run(silence, g.count)
				burst(1, 400)
				w.run(5*quantum, g.count)
				burst(0, 60)
				w.run(3*time.Second, g.count)
			}
			l.check(t, "hoarded tokens")
			kept := int64(0)
			for _, granted := range w.plane.granted {
				kept += granted.Keep
			}
			t.Logf("%d tokens used, %d kept in %d calls", l.used, kept, w.plane.requests)
			if kept < 500 {
				t.Error("the test says little")
			}
		})
	}
}

// The law holds through all that happens to a proxy: VMs trap between any two accesses to shared
// data and come back, listeners are updated, clients go away, policy sets are pushed.
func TestLawHoldsThroughTrapsAndUpdates(t *testing.T) {
	set := setOf(limits("api", "leased", "200/1s burst 300", thenDeny, costHeader))
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 17))
			var tr trap
			w := newWorld(t, fleet{nodes: 2, workers: 2, seed: seed, fail: envoytest.FailReload,
				drain: 300 * time.Millisecond, onShared: tr.hook, set: set})
			w.plane.lag = func() (up, down time.Duration) { return millis(r, 1, 10), millis(r, 1, 10) }
			l := newLaw(t, 200, quota.Second, 300)
			g := &game{world: w, law: l}
			updates, cancelled := 0, 0
			w.run(10*time.Second, func() {
				g.count()
				switch r.IntN(400) {
				case 0:
					tr.armed, tr.vm = true, r.IntN(2)
				case 1:
					updates++
					inline := setOf(limits("unused", "local", fmt.Sprint(updates, "/1s"), `"match": {"paths": ["/none"]}`))
					if err := w.nodes[r.IntN(2)].UpdatePlugin(w.config(inline)); err != nil {
						t.Error(err)
					}
				case 2:
					w.plane.push(set)
				}
				for _, a := range g.open {
					if w.now-a.sent > 200*time.Millisecond || r.IntN(20) == 0 {
						cancelled++
						a.stream.Cancel()
					}
				}
				for range r.IntN(3) {
					g.send(r.IntN(2), r.IntN(2), 1+r.Int64N(2))
				}
			})
			l.check(t, "through it all")
			t.Logf("%d of %d tokens let through; %d traps, %d updates, %d clients gone", l.used,
				int64(l.most(10*time.Second)), tr.sprung, updates, cancelled)
			if float64(l.used) < 0.3*l.most(10*time.Second) || tr.sprung < 5 || updates < 5 {
				t.Error("the test says little")
			}
		})
	}
}

// lateAfter is the deadline of a request that waits for the control plane; a tick of the filter
// ends those whose call is younger.
const (
	lateAfter = 50 * time.Millisecond
	tick      = 10 * time.Millisecond
)

// Tokens for waiting requests run out 50 ms after they were asked for, less the margin: a reply of
// the last millisecond is not used, nor are its tokens by any request later. Tokens to keep run out
// as long after the call was sent.
func TestExpiryIsMeasuredFromTheCall(t *testing.T) {
	t.Run("waiting", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "100/1h", thenDeny))})
		w.plane.lag = func() (up, down time.Duration) { return quantum, 48 * quantum }
		a := w.ask(0, 0, get("x-key", "a"))
		if a.passed {
			t.Errorf("a request passed by a reply that came after %v", a.ended-a.sent)
		}
		w.plane.lag = nil
		before := w.plane.requests
		if a = w.ask(0, 0, get("x-key", "a")); !a.passed || w.plane.requests != before+1 {
			t.Errorf("the next request: passed %v, with %d calls", a.passed, w.plane.requests-before)
		}
		if d := w.decision(a); d.remaining != 98 {
			t.Errorf("%d remain, want 98: the lost token is charged", d.remaining)
		}
	})
	t.Run("kept", func(t *testing.T) {
		// 100/s with a burst of 400: a lease lives 200 ms.
		w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "100/1s burst 400", thenDeny))})
		for range 300 {
			w.request(0, 0, get("x-key", "a"))
			w.advance(4 * quantum)
		}
		w.plane.down = true
		w.advance(5 * quantum)
		last := time.Duration(0)
		for _, g := range w.plane.granted {
			if g.Keep > 0 {
				last = g.at - quantum // when it was sent
			}
		}
		if last < w.now-100*time.Millisecond {
			t.Fatalf("nothing was kept lately: the test says nothing")
		}
		// The tokens that were kept last may be used until 199.8 - 1 ms after.
		w.advance(last + 198*quantum - w.now)
		if a := w.request(0, 0, get("x-key", "a")); !a.passed {
			t.Errorf("a token of %v ago was not good", w.now-last)
		}
		w.advance(quantum)
		if a := w.request(0, 0, get("x-key", "a")); a.done {
			t.Errorf("a token of %v ago was still good", w.now-last)
		}
	})
}

// Tokens that the control plane has granted are used or lapse: the counter of lapsed tokens and the
// requests that passed add up.
func TestLapsedTokensAreCounted(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("p", "leased", "10000/1s"))})
	pass := func(n int) {
		for i := range n {
			for range 3 {
				w.request(0, i%2, get("x-key", "a"))
			}
			w.advance(quantum)
		}
		w.advance(100 * quantum)
	}
	pass(500)
	for range 3 { // A lease never lasts for 5 s. The next request of a worker reports its end.
		w.advance(5 * time.Second)
		pass(20)
	}
	for range 5 { // Ever less is asked for.
		w.advance(5 * time.Second)
		pass(1)
	}
	granted := int64(0)
	for _, g := range w.plane.granted {
		granted += g.Waiting*g.item.Cost + g.Keep
	}
	passed, lapsed := int64(w.counter("requests.allowed")), int64(w.counter("leases.lapsed_tokens"))
	t.Logf("granted %d: %d passed, %d lapsed", granted, passed, lapsed)
	if lapsed == 0 || passed+lapsed > granted || passed+lapsed < granted*98/100 {
		t.Errorf("granted %d, but %d passed and %d lapsed", granted, passed, lapsed)
	}
}
