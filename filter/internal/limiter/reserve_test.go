package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/limiter"
)

// reserved is a policy of a set with two classes, of which a header chooses the first.
const reserved = `{"name":"p","partition":[],%s,"reserve":{"first":"20%%"},"mode":"local"}],
	"priorities":[{"name":"first","match":{"headers":[{"name":"x-first","present":true,"trusted":true}]}},{"name":"rest"}`

// Requests of the lower class that wait for one of its places take none of the others meanwhile,
// nor stand in the way of the first class.
func TestReserveWhileOthersWait(t *testing.T) {
	n, book := newFlights(t, fmt.Sprintf(reserved, `"limit":{"in_flight":10},"max_wait":"100ms"`))
	bulk, waiting := n.fill()
	waits := map[uint32]*limiter.Request{}
	for range 6 {
		req, status := n.begin()
		if status != limiter.Paused {
			t.Fatal(status)
		}
		waits[req.Stream] = req
	}
	first, full := n.fill("x-first", "1")
	if len(bulk) != 8 || len(first) != 2 {
		t.Fatalf("%d of the lower class and %d of the first", len(bulk), len(first))
	}
	n.limiter.Cancel(full, n.now)
	n.end(first[0])
	n.end(bulk[0]) // Its place goes to the first that waits, and there is one in all for it.
	if got := book.TakeResolved(9); len(got) != 1 || got[0] != waiting.Stream {
		t.Fatalf("resolved %v, want %d", got, waiting.Stream)
	}
	if status := n.limiter.Resume(waiting, n.now); status != limiter.Allowed {
		t.Fatal(status)
	}
	more, full := n.fill("x-first", "1")
	if len(more) != 1 {
		t.Errorf("%d of the first class once a place is free", len(more))
	}
	waits[full.Stream] = full
	n.now += 100 * millisecond
	book.Tick(n.now)
	for _, stream := range book.TakeResolved(9) {
		if status := n.limiter.Resume(waits[stream], n.now); status != limiter.Refused {
			t.Error(status)
		}
	}
}

// A flood of ten times the limit gets its part of a quota, and leaves the other to the first class.
func TestReserveOfAQuota(t *testing.T) {
	n, _ := newFlights(t, fmt.Sprintf(reserved, `"limit":{"quota":10,"window":"1h"}`))
	bulk, first := 0, 0
	for range 100 {
		if _, status := n.begin(); status == limiter.Allowed {
			bulk++
		}
	}
	for range 100 {
		if _, status := n.begin("x-first", "1"); status == limiter.Allowed {
			first++
		}
	}
	if bulk != 8 || first != 2 {
		t.Errorf("%d of the lower class and %d of the first", bulk, first)
	}
}
