package wasm

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

var off = wire.Order{State: policy.EnforcedOff, Percent: 100}

// passed says of each worker whether a request passes that the policy refuses.
func (w *world) passed() (all []bool) {
	w.t.Helper()
	for worker := range w.fleet.workers {
		all = append(all, w.ask(0, worker, get("x-key", "a")).passed)
	}
	return all
}

func (w *world) expectAll(name string, want bool) {
	w.t.Helper()
	for worker, passed := range w.passed() {
		if passed != want {
			w.t.Errorf("%s: worker %d lets a request pass: %v", name, worker, passed)
		}
	}
}

// An order reaches every worker within two ticks, stays while the control plane is away, also in a
// worker that starts anew, and ends by the node's own clock.
func TestOrdersReachEveryWorker(t *testing.T) {
	var tr trap
	w := newWorld(t, fleet{nodes: 1, workers: 3, fail: envoytest.FailReload, onShared: tr.hook,
		set: setOf(limits("api", "local", "1/1h"))})
	h := w.nodes[0]
	w.ask(0, 0, get("x-key", "a"))
	w.expectAll("used up", false)
	w.plane.order(off)
	w.advance(2*quantum + 2*tick)
	w.expectAll("switched off", true)
	if p := w.plane.lastPoll(0); p.obeys != 1 || !p.query.Has("enforcement") {
		t.Errorf("the next poll says %v", p.query)
	}
	if got := w.counter("requests.bypassed"); got != 3 || w.counter("enforcement.orders") != 1 {
		t.Errorf("%d bypassed, %d orders", got, w.counter("enforcement.orders"))
	}
	// A push does not let one request be refused in between.
	for quota := range 6 {
		w.plane.push(setOf(limits("other", "local", "1/1h", `"match": {"paths": ["/other"]}`), limits("api", "local", []string{"2/1h", "1/1h"}[quota%2])))
		w.run(3*tick, func() {
			for worker := range 3 {
				if a := w.request(0, worker, get("x-key", "a")); !a.passed {
					t.Errorf("push %d: worker %d refuses", quota, worker)
				}
			}
		})
	}
	w.plane.down = true
	tr.armed, tr.vm = true, 1
	w.advance(20 * quantum)
	if h.Alive(1) {
		t.Fatal("the worker is alive")
	}
	w.advance(2 * time.Second)
	w.expectAll("a worker that starts anew", true)
	w.plane.down = false
	w.advance(30 * time.Second)
	until := off
	until.Expires = h.Now().Add(5 * time.Second).UnixMilli()
	w.plane.order(until)
	w.advance(time.Second)
	w.plane.down = true
	w.expectAll("for a while", true)
	w.advance(3900 * time.Millisecond)
	w.expectAll("nearly over", true)
	w.advance(150 * time.Millisecond)
	w.expectAll("over", false)
	w.advance(250 * time.Millisecond) // By then the leader has looked.
	if n := w.counter("enforcement.orders"); n != 0 {
		t.Errorf("%d orders", n)
	}
}
