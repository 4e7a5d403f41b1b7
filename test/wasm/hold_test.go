package wasm

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/wire"
)

// holding is a world with one policy and the times that its requests were held.
type holding struct {
	*world
	count, sum uint64
}

// mustHave compares the histogram's increase since the last time with the times for which requests
// were held, in milliseconds.
func (h *holding) mustHave(what string, held ...uint64) {
	h.t.Helper()
	var want uint64
	for _, one := range held {
		want += one
	}
	count, sum, ok := h.nodes[0].Histogram("weir.hold.milliseconds")
	if !ok || count-h.count != uint64(len(held)) || sum-h.sum != want {
		h.t.Errorf("%s: %d requests were held %d ms, want %d", what, count-h.count, sum-h.sum, held)
	}
	h.count, h.sum = count, sum
}

// The time that a request waits for tokens is a metric, however it ends. It leaves out requests
// that need no answer, and the time for which a request waits for its turn in a leaky bucket.
func TestTheTimeThatRequestsAreHeldIsAMetric(t *testing.T) {
	hold := func(policies ...string) *holding {
		h := &holding{world: newWorld(t, fleet{nodes: 1, set: setOf(policies...)})}
		h.plane.lag = func() (up, down time.Duration) { return 3 * quantum, 4 * quantum }
		return h
	}

	strict := hold(limits("api", "strict", "2/1h", thenDeny))
	strict.ask(0, 0, get("x-key", "a"))
	strict.mustHave("granted", 7)
	first, second := strict.request(0, 0, get("x-key", "a")), strict.request(0, 0, get("x-key", "a"))
	strict.advance(20 * quantum)
	if !first.passed || second.passed {
		t.Errorf("of two requests for one token the first passed: %v, the second: %v", first.passed, second.passed)
	}
	strict.mustHave("granted, and refused by the call after that", 7, 14)
	strict.ask(0, 0, get("x-key", "a"))
	strict.mustHave("refused without a call")

	gone := strict.nodes[0].Worker(0).Request(get("x-key", "b"))
	strict.advance(2 * quantum)
	gone.Cancel()
	strict.mustHave("the client went away", 2)
	strict.advance(20 * quantum)
	strict.mustHave("its answer")
	strict.advance(10 * time.Second)
	if got := strict.plane.measures["*"]; got.Decided != 4 || got.Waited != 3 {
		t.Errorf("of 4 requests that were decided 3 waited; reported are %+v", got)
	}

	strict.plane.lease = func(*envoytest.Call, wire.LeaseRequest) bool { return true }
	late := strict.ask(0, 0, get("x-key", "c"))
	if held := late.ended - late.sent; held < 50*quantum {
		t.Errorf("a request without an answer was held %v", held)
	}
	strict.mustHave("no answer", uint64((late.ended-late.sent)/time.Millisecond))

	leased := hold(limits("api", "leased", "1000/1h", thenDeny))
	var held []uint64
	for range 40 {
		if a := leased.ask(0, 0, get("x-key", "a")); a.ended > a.sent {
			held = append(held, uint64((a.ended-a.sent)/time.Millisecond))
		}
		leased.advance(quantum)
	}
	if len(held) == 0 || len(held) > 20 {
		t.Errorf("%d of 40 requests waited", len(held))
	}
	leased.mustHave("requests that found no tokens in hand", held...)

	queue := hold(limits("queue", "strict", "10/1s burst 5", forAll, `"algorithm": "leaky_bucket"`))
	queue.ask(0, 0, get())
	turn := queue.ask(0, 0, get())
	if held := turn.ended - turn.sent; held < 90*quantum {
		t.Errorf("the second request waited %v for its turn", held)
	}
	queue.mustHave("asked, then delayed", 7, 7)

	places := hold(`{"name": "places", "partition": [], "limit": {"in_flight": 1}, "max_wait": "1s", "mode": "local"}`,
		limits("api", "strict", "9/1h", forAll))
	holder := places.nodes[0].Worker(0).Request(get())
	places.advance(20 * quantum)
	places.mustHave("a place at once, then tokens", 7)
	waiter := places.nodes[0].Worker(0).Request(get())
	places.advance(100 * quantum)
	holder.Respond(200, nil)
	places.advance(20 * quantum)
	if waiter.State() != envoytest.Continued {
		t.Errorf("the request that waited for a place: %v", waiter.State())
	}
	places.mustHave("100 ms for a place, then tokens", 7)
	if waited, _ := places.nodes[0].Metric("weir.requests.waited"); waited != 2 {
		t.Errorf("%d requests have waited for tokens, want 2", waited)
	}
}
