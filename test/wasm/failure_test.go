package wasm

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/wire"
)

// maxWaiting is how many requests may wait in one worker.
const maxWaiting = 1024

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
