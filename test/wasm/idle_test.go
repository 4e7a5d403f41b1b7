package wasm

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// ticked counts the ticks of all VMs of a node while something happens.
func ticked(h *envoytest.Host, during func()) uint64 {
	before := h.Stats()
	during()
	return h.Stats().Since(before).Entries["proxy_on_tick"]
}

// A node without requests ticks once a second in each VM, four times in the leader.
func TestAnIdleNodeHardlyTicks(t *testing.T) {
	policies := []string{limits("api", "leased", "1000/1h"), limits("o", "optimistic", "1000/1h"),
		limits("s", "strict", "1000/1h")}
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(policies...)})
	w.advance(2 * time.Second)
	before := w.nodes[0].Stats()
	if n := ticked(w.nodes[0], func() { w.advance(10 * time.Second) }); n < 30 || n > 10*(4+1+1)+3 {
		t.Errorf("%d ticks of three VMs in 10 s", n)
	}
	if n := w.nodes[0].Stats().Since(before).Hostcalls["proxy_set_tick_period_milliseconds"]; n > 3 {
		t.Errorf("the timer was set %d times", n)
	}
	lonely := start(t, envoytest.Options{Workers: 2, PluginConfig: alone(setOf(limits("api", "local", "1000/1h")))})
	lonely.Advance(2 * time.Second)
	if n := ticked(lonely, func() { lonely.Advance(10 * time.Second) }); n < 27 || n > 33 {
		t.Errorf("%d ticks of three VMs without a control plane in 10 s", n)
	}
}

// A request makes one tick, which counts it. Then the worker is idle again.
func TestARequestMakesOneTick(t *testing.T) {
	lonely := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("api", "local", "1000/1h")))})
	lonely.Advance(2 * time.Second)
	idle := ticked(lonely, func() { lonely.Advance(10 * time.Second) })
	n := ticked(lonely, func() {
		for i := range 50 {
			passes(t, lonely, 0, get("x-key", "a"))
			lonely.Advance(10 * time.Millisecond)
			if got := counter(lonely, "requests.allowed"); got != uint64(i+1) {
				t.Errorf("%d requests are counted 10 ms after request %d", got, i+1)
			}
			lonely.Advance(190 * time.Millisecond)
		}
	})
	if n > 50+idle {
		t.Errorf("50 requests in 10 s made %d ticks, without requests there are %d", n, idle)
	}
}

// After any idle time of a worker, a request finds everything that any VM of the process knew 10 ms
// before it.
func TestAnIdleWorkerCatchesUpBeforeARequest(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 3, set: setOf(limits("api", "local", "10/1m", costHeader))})
	for i := range 20 {
		w.advance(1300 * time.Millisecond)
		version := 20 + i
		w.plane.push(setOf(limits("api", "local", fmt.Sprintf("%d/1m", version), costHeader)))
		w.advance(2*quantum + tick)
		for worker := range 3 {
			a := w.request(0, worker, get("x-key", "probe", "x-cost", "0"))
			if !a.done || draft11(t, a.stream.Reply().Header("ratelimit-policy"))[0].params["q"] != int64(version) {
				t.Fatalf("push %d: worker %d is not up to date", i, worker)
			}
		}
	}
	w.advance(1300 * time.Millisecond)
	w.plane.order(off)
	w.advance(2*quantum + tick)
	w.expectAll("switched off", true)
}

// If the leader ends while all VMs are idle, another one polls within four seconds: three until the
// leader's lease ends, and one until a VM looks.
func TestTheNextLeaderOfAnIdleNode(t *testing.T) {
	for round := range 5 {
		var tr trap
		w := newWorld(t, fleet{nodes: 1, workers: 2, fail: envoytest.FailReload, onShared: tr.hook,
			set: setOf(limits("api", "local", "10/1m"))})
		h := w.nodes[0]
		w.advance(10*time.Second + time.Duration(round)*217*time.Millisecond)
		leader := pollers(h)[0]
		for tr = (trap{armed: true, vm: leader}); tr.armed; {
			w.advance(quantum)
		}
		died := w.now
		for len(pollers(h)) == 0 {
			w.advance(quantum)
			if w.now > died+4*time.Second+2*tick {
				t.Fatalf("no VM polls %v after the leader's end", w.now-died)
			}
		}
		if vm := pollers(h)[0]; vm == leader {
			t.Errorf("VM %d polls, which has ended", vm)
		}
	}
}
