package wasm

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// maxWaiting is how many requests may wait in one worker.
const maxWaiting = 1024

// However many wait, one call is under way for a bucket. The requests beyond the bound are decided
// by the node's share, which is all of the limit for one node, also where the policy allows
// everything in a failure: overload is no way around the limit.
func TestWaitersAreBounded(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(limits("api", "leased", "1300/1h", thenAllow))})
	w.plane.lag = func() (up, down time.Duration) { return 20 * quantum, 20 * quantum }
	var refused, waiting []*attempt
	byShare := 0
	for range maxWaiting + 1500 {
		switch a := w.request(0, 0, get("x-key", "a")); {
		case !a.done:
			waiting = append(waiting, a)
		case a.passed:
			byShare++
		default:
			refused = append(refused, a)
		}
	}
	if byShare != 1300 || len(refused) != 200 {
		t.Errorf("beyond the bound %d pass and %d are refused; the share is 1300", byShare, len(refused))
	}
	if len(waiting) != maxWaiting || w.plane.requests != 1 {
		t.Errorf("%d wait by %d calls, want %d by one", len(waiting), w.plane.requests, maxWaiting)
	}
	for _, a := range refused {
		if d := w.decision(a); a.passed || d.reason != "failure" || a.stream.Reply().Status != 429 ||
			a.stream.Reply().Header("retry-after") == "" {
			t.Fatalf("beyond the bound: %+v, %+v", d, a.stream.Reply())
		}
	}
	if a := w.request(0, 1, get("x-key", "a")); a.done {
		t.Error("the other worker must have its own bound")
	}
	w.advance(41 * quantum)
	if w.plane.requests != 4 {
		t.Errorf("%d calls, want one for the first request of each worker, one to charge the share and one for all "+
			"who queued behind", w.plane.requests)
	}
	w.advance(60 * quantum)
	for _, a := range waiting {
		if !a.done {
			t.Fatal("a request still waits")
		}
	}
	if n := w.counter("requests.too_many_waiting"); n != 1500 {
		t.Errorf("%d counted as too many, want 1500", n)
	}
}

// Clients that go away while they wait leave nothing behind: no place in the queue, no trouble when
// the answer comes, and their tokens serve the next request.
func TestClientsGoAwayWhileTheyWait(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "100/1h", thenDeny))})
	for round := range 5 {
		w.plane.lag = func() (up, down time.Duration) { return 5 * quantum, 5 * quantum }
		var streams []*envoytest.Stream
		for range maxWaiting {
			s := w.nodes[0].Worker(0).Request(get("x-key", strconv.Itoa(round)))
			if s.State() != envoytest.Paused {
				t.Fatalf("round %d: after %d requests one is %v", round, len(streams), s.State())
			}
			streams = append(streams, s)
		}
		for i, s := range streams {
			if i == 3*maxWaiting/4 {
				w.advance(7 * quantum) // half way, an answer is under way
			}
			s.Cancel()
		}
		w.advance(30 * quantum)
		// One call asked for one of them, and got it.
		if a := w.ask(0, 0, get("x-key", strconv.Itoa(round))); !a.passed {
			t.Errorf("round %d: the next request: %+v", round, w.decision(a))
		}
		w.advance(100 * quantum)
	}
}

// The token of a client that went away serves the next request of its worker without another call.
// If none comes in time it goes back. Either way as many requests pass as the limit allows: no
// token is lost, and none is there twice.
func TestTokenOfAGoneClientIsUsed(t *testing.T) {
	const quota = 10
	for _, mode := range []string{"leased", "strict"} {
		for _, algorithm := range []string{"token_bucket", "fixed_window", "sliding_log"} {
			for _, soon := range []bool{true, false} {
				w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", mode, "10/1h", thenDeny,
					`"algorithm": "`+algorithm+`"`))})
				w.plane.names = true
				name := fmt.Sprintf("%s %s, the next comes soon %v", mode, algorithm, soon)
				w.nodes[0].Worker(0).Request(get("x-key", "a")).Cancel()
				w.advance(5 * quantum)
				passed := 0
				if soon {
					if a := w.request(0, 0, get("x-key", "a")); !a.passed || w.plane.requests != 1 {
						t.Errorf("%s: passed: %v, with %d calls", name, a.passed, w.plane.requests)
					}
					passed++
				} else {
					w.advance(100 * time.Millisecond)
				}
				for range 2 * quota {
					if w.ask(0, 0, get("x-key", "a")).passed {
						passed++
					}
				}
				if passed != quota {
					t.Errorf("%s: %d pass, want %d", name, passed, quota)
				}
			}
		}
	}
}

// An answer of any wrong kind is a failure of the call: the failure setting decides, it is counted,
// and the next call is good.
func TestWrongAnswers(t *testing.T) {
	respond := func(status int, body []byte) func(*envoytest.Call, wire.LeaseRequest) {
		return func(c *envoytest.Call, _ wire.LeaseRequest) { c.Respond(quantum, status, nil, body) }
	}
	reply := func(change func(*wire.LeaseReply)) func(*envoytest.Call, wire.LeaseRequest) {
		return func(c *envoytest.Call, req wire.LeaseRequest) {
			m := wire.LeaseReply{Seq: req.Seq, Nodes: 1}
			for _, it := range req.Items {
				m.Items = append(m.Items, wire.LeaseAnswer{Waiting: it.Waiting, Level: 5})
			}
			change(&m)
			c.Respond(quantum, 200, nil, wire.AppendLeaseReply(nil, m))
		}
	}
	for _, c := range []struct {
		name    string
		answer  func(*envoytest.Call, wire.LeaseRequest)
		counter string
		at      time.Duration // when the request ends
	}{
		{"status 503", respond(503, []byte("no healthy upstream")), "leases.unavailable", quantum},
		{"status 504", respond(504, nil), "leases.no_answer", quantum},
		{"status 401", respond(401, nil), "leases.refused", quantum},
		{"no answer", func(*envoytest.Call, wire.LeaseRequest) {}, "leases.no_answer", lateAfter},
		{"connection reset", func(c *envoytest.Call, _ wire.LeaseRequest) { c.Reset(quantum) }, "leases.no_answer",
			quantum},
		{"connection refused", func(c *envoytest.Call, _ wire.LeaseRequest) { c.FailConnection(quantum) },
			"leases.unavailable", quantum},
		{"dispatch fails", func(c *envoytest.Call, _ wire.LeaseRequest) { c.FailNow() }, "leases.unsent", 0},
		{"empty", respond(200, nil), "leases.unreadable", quantum},
		{"garbage", respond(200, []byte("<html>It works!</html>")), "leases.unreadable", quantum},
		{"large garbage", respond(200, make([]byte, 1<<20)), "leases.unreadable", quantum},
		{"wrong sequence", reply(func(m *wire.LeaseReply) { m.Seq++ }), "leases.unreadable", quantum},
		{"too few items", reply(func(m *wire.LeaseReply) { m.Items = nil }), "leases.unreadable", quantum},
		{"too many items", reply(func(m *wire.LeaseReply) { m.Items = append(m.Items, m.Items[0]) }),
			"leases.unreadable", quantum},
		{"no nodes", reply(func(m *wire.LeaseReply) { m.Nodes = 0 }), "leases.unreadable", quantum},
		{"more than asked", reply(func(m *wire.LeaseReply) { m.Items[0].Waiting++ }), "leases.unknown", quantum},
		{"kept more than asked", reply(func(m *wire.LeaseReply) { m.Items[0].Keep += 100 }), "leases.unknown", quantum},
		{"policy not known", reply(func(m *wire.LeaseReply) { m.Items[0].State = wire.ItemUnknown }), "leases.unknown",
			quantum},
	} {
		for _, then := range []string{"deny", "allow"} {
			t.Run(c.name+", "+then, func(t *testing.T) {
				w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "10/1h", `"on_failure": {"then": "`+then+`"}`))})
				bad := 0
				w.plane.lease = func(call *envoytest.Call, req wire.LeaseRequest) bool {
					bad++
					c.answer(call, req)
					return true
				}
				a := w.ask(0, 0, get("x-key", "a"))
				if a.passed != (then == "allow") || bad != 1 || a.ended-a.sent != c.at {
					t.Errorf("passed: %v after %v and %d calls", a.passed, a.ended-a.sent, bad)
				}
				if d := w.decision(a); !a.passed && d.reason != "failure" {
					t.Errorf("the decision is %+v", d)
				}
				if n := w.counter(c.counter); n != 1 {
					t.Errorf("%s is %d, want 1", c.counter, n)
				}
				if n := w.counter("decisions.by_failure_" + then); n != 1 {
					t.Errorf("the failure was counted %d times", n)
				}
				w.plane.lease = nil
				w.advance(2 * time.Second) // past any pause of the breaker
				if a = w.ask(0, 0, get("x-key", "a")); !a.passed || w.decision(a).remaining != 9 {
					t.Errorf("after it: %+v", w.decision(a))
				}
			})
		}
	}
}

// The failure ladder: what the node still holds, then its share for local_for, then the last step.
func TestFailureLadder(t *testing.T) {
	for _, c := range []struct {
		then    string
		forever bool // the share never ends
		passes  bool // at last
	}{{"allow", false, true}, {"deny", false, false}, {"local", true, false}} {
		t.Run(c.then, func(t *testing.T) {
			const nodes = 4
			onFailure := fmt.Sprintf(`"on_failure": {"local_for": "5s", "then": %q}`, c.then)
			w := newWorld(t, fleet{nodes: 1, workers: 2,
				set: setOf(limits("api", "leased", "400/10s burst 100", onFailure))})
			w.plane.nodes = nodes
			w.ask(0, 0, get("x-key", "a"))
			w.plane.down = true
			began := w.now
			// A share is a fourth of rate and burst, and starts full: the bucket is known to hold
			// more.
			share := newLaw(t, 100, 10*quota.Second, 25)
			g := &game{world: w, law: share}
			w.run(5*time.Second, func() {
				g.send(0, int(w.now/quantum)%2, 1)
				g.count()
			})
			share.check(t, "the share")
			passed := share.used
			t.Logf("%d passed in 5 s by the share of 10/s; %d waited, %v at most; %d calls", passed, g.waited,
				g.longest, w.plane.requests)
			if passed < 71 || passed > 75 {
				t.Errorf("%d passed in 5 s by a share of 25 and 10/s", passed)
			}
			for w.now < began+6*time.Second {
				w.advance(quantum)
			}
			g.count()
			if !c.forever {
				for range 200 {
					a := w.ask(0, 1, get("x-key", "a"))
					if d := w.decision(a); a.passed != c.passes || !a.passed && d.reason != "failure" {
						t.Fatalf("after local_for: %+v", d)
					}
					w.advance(quantum)
				}
			} else {
				w.run(20*time.Second, func() {
					g.send(0, int(w.now/quantum)%2, 1)
					g.count()
				})
				share.check(t, "the lasting share")
				if share.used < 265 || share.used > 286 {
					t.Errorf("%d passed in 26 s by a share of 25 and 10/s", share.used)
				}
			}
			// The control plane is back: within the longest pause the control plane decides again.
			w.plane.down = false
			back := w.now
			calls := w.plane.requests
			for len(w.plane.granted) == 1 {
				if w.now > back+3*time.Second {
					t.Fatalf("%v after the recovery, and %d calls, nothing was granted", w.now-back,
						w.plane.requests-calls)
				}
				w.request(0, 0, get("x-key", "a"))
				w.advance(10 * quantum)
			}
			t.Logf("the first grant came %v after the recovery", w.now-back)
			w.advance(500 * quantum)
			if a := w.ask(0, 1, get("x-key", "a")); !a.passed || w.decision(a).policy != "api" {
				t.Errorf("after the recovery: %+v", w.decision(a))
			}
		})
	}
}

// Leased tokens stay good while the control plane is away: they are used first.
func TestLeasedTokensOutliveTheControlPlane(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "600/1m burst 600", thenDeny))})
	for range 1000 { // 200/s for 5 s; a lease is for a quarter of 3 s
		w.request(0, 0, get("x-key", "a"))
		w.advance(5 * quantum)
		if len(w.waiting) == 0 && w.now > 2*time.Second && w.now < 2500*time.Millisecond {
			break
		}
	}
	w.plane.down = true
	passed := 0
	for range 100 {
		if a := w.request(0, 0, get("x-key", "a")); a.passed {
			passed++
		}
	}
	t.Logf("%d requests passed by tokens in hand", passed)
	if passed < 10 {
		t.Errorf("%d requests passed by tokens in hand", passed)
	}
}

// Once the control plane is known to be away, requests do not wait for it: three calls in a row
// that fail open the circuit, and one call after each pause looks whether it is back.
func TestCircuitOpens(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(call *envoytest.Call)
		open int // failed calls until it opens
	}{
		{"silent", func(*envoytest.Call) {}, 3},
		{"503", func(call *envoytest.Call) { call.Respond(quantum, 503, nil, nil) }, 3},
		{"cannot be called", func(call *envoytest.Call) { call.FailNow() }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "leased", "100/1s", thenDeny))})
			w.plane.lease = func(call *envoytest.Call, _ wire.LeaseRequest) bool {
				c.fail(call)
				return true
			}
			for i := range c.open {
				w.ask(0, 0, get("x-key", strconv.Itoa(i)))
			}
			if w.plane.requests != c.open {
				t.Errorf("%d calls, want %d", w.plane.requests, c.open)
			}
			waited, sent := 0, 0
			w.run(20*time.Second, func() {
				sent++
				if a := w.request(0, 0, get("x-key", strconv.Itoa(sent))); !a.done {
					waited++
				}
			})
			probes := w.plane.requests - c.open
			t.Logf("of %d requests in 20 s %d waited, for %d probes", sent, waited, probes)
			// The pause doubles from 250 ms to 1 s, less up to a half.
			if probes < 18 || probes > 45 || waited > probes {
				t.Errorf("%d of %d requests waited, for %d probes in 20 s", waited, sent, probes)
			}
		})
	}
}

// Many requests wait when the control plane stops answering, and more come: however many are
// refused at once, Envoy can carry it out, and each is answered.
func TestManyThatWaitAreAnswered(t *testing.T) {
	for _, mode := range []string{"strict", "leased"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", mode, "100/1h", thenDeny))})
			w.plane.lease = func(*envoytest.Call, wire.LeaseRequest) bool { return true }
			var all []*attempt
			w.run(200*time.Millisecond, func() {
				for range 20 {
					all = append(all, w.request(0, 0, get("x-key", "a")))
				}
			})
			w.advance(time.Second)
			for _, a := range all {
				if !a.done || a.passed {
					t.Fatalf("of %d requests one has passed (%v) or still waits", len(all), a.passed)
				}
			}
		})
	}
}

// Strict: each request is one decision of the control plane, and no token idles on a node.
func TestStrictAsksForEachRequest(t *testing.T) {
	w := newWorld(t, fleet{nodes: 2, workers: 2, set: setOf(limits("api", "strict", "200/10s", thenDeny))})
	var all []*attempt
	w.run(3*time.Second, func() {
		if w.now%(5*quantum) == 0 { // 200/s against 20/s
			i := int(w.now/(5*quantum)) % 4
			all = append(all, w.request(i/2, i%2, get("x-key", "a")))
		}
	})
	w.advance(100 * quantum)
	passed, decided, granted := 0, int64(0), int64(0)
	for _, a := range all {
		if a.passed {
			passed++
			if a.ended-a.sent < 2*quantum {
				t.Error("a request passed without a round trip")
			}
		}
	}
	for _, g := range w.plane.granted {
		if decided += g.item.Waiting; g.item.Keep != 0 || g.Keep != 0 {
			t.Errorf("%d tokens asked to keep, %d got", g.item.Keep, g.Keep)
		}
		granted += g.Waiting
	}
	t.Logf("%d requests, %d passed, %d decided by the control plane in %d calls", len(all), passed, decided,
		w.plane.requests)
	if int64(passed) != granted {
		t.Errorf("%d passed, %d were granted", passed, granted)
	}
	if passed < 258 || passed > 260 {
		t.Errorf("%d passed, want 200 + 3 s of 20/s", passed)
	}
}
