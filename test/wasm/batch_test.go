package wasm

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/wire"
)

// batch has eight callers come at once, each with a bucket of five tokens: the first one's call
// leaves alone, the others share the next.
func batch(w *world) (all []*attempt) {
	for n := range 8 {
		all = append(all, w.request(0, 0, get("x-key", fmt.Sprint(n))))
	}
	return all
}

// Whatever becomes of a call that several callers share, each is let through or refused by what was
// said about its own bucket, at its deadline at the latest, and no token is used twice.
func TestWhatBecomesOfASharedCall(t *testing.T) {
	for _, c := range []struct {
		name string
		// lease handles the shared call in its own way.
		lease func(w *world, c *envoytest.Call, req wire.LeaseRequest) bool
		reply func(*wire.LeaseReply)
		// gone are the last callers, who do not wait for it.
		gone int
		// passed are those of the seven who pass, left the tokens that each has afterwards.
		passed, left int
	}{
		{name: "answered", passed: 7, left: 4},
		{name: "half answered", passed: 3, left: 4, reply: func(r *wire.LeaseReply) {
			for i := 3; i < len(r.Items); i++ {
				r.Items[i] = wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: 1}
			}
		}},
		{name: "cut off", passed: 0, left: 4, reply: func(r *wire.LeaseReply) { r.Items = r.Items[:3] }},
		{name: "of another call", passed: 0, left: 4, reply: func(r *wire.LeaseReply) { r.Seq-- }},
		{name: "counted twice", passed: 7, left: 3,
			lease: func(w *world, _ *envoytest.Call, req wire.LeaseRequest) bool {
				w.plane.grant(0, req)
				return false
			}},
		{name: "late", passed: 0, left: 4, lease: func(w *world, c *envoytest.Call, req wire.LeaseRequest) bool {
			reply := wire.AppendLeaseReply(nil, w.plane.grant(0, req))
			w.after(49*quantum, func() { c.Respond(quantum, 200, nil, reply) })
			return true
		}},
		{name: "never answered", passed: 0, left: 5,
			lease: func(*world, *envoytest.Call, wire.LeaseRequest) bool { return true }},
		{name: "cancelled in part", passed: 4, gone: 3, left: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, fleet{nodes: 1, set: setOf(limits("api", "strict", "5/1h", thenDeny))})
			w.plane.lease = func(call *envoytest.Call, req wire.LeaseRequest) bool {
				if len(req.Items) == 1 {
					return false
				}
				w.plane.reply = func(r *wire.LeaseReply) {
					if c.reply != nil && len(r.Items) > 1 { // The first call may not be answered yet.
						c.reply(r)
					}
				}
				return c.lease != nil && c.lease(w, call, req)
			}
			all := batch(w)
			w.advance(quantum)
			for _, a := range all[8-c.gone:] {
				a.stream.Cancel()
			}
			w.advance(80 * quantum)
			if w.plane.requests != 2 || !all[0].passed {
				t.Errorf("%d calls, the first passed: %v", w.plane.requests, all[0].passed)
			}
			passed := 0
			for _, a := range all[1:] {
				if a.passed {
					passed++
				}
				if !a.done || a.ended-a.sent > 60*quantum {
					t.Errorf("a caller waited for %v", a.ended-a.sent)
				}
			}
			if passed != c.passed {
				t.Errorf("%d of 7 passed, want %d", passed, c.passed)
			}
			w.plane.lease, w.plane.reply = nil, nil
			w.advance(5 * time.Second) // An outage, if it was one, is over.
			for n := 1; n < 8; n++ {
				left := 0
				for w.ask(0, 0, get("x-key", fmt.Sprint(n))).passed {
					left++
				}
				if left != c.left {
					t.Errorf("caller %d has %d more tokens, want %d", n, left, c.left)
				}
			}
		})
	}
}
