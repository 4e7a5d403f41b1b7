package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const millisecond = quota.Instant(quota.Millisecond)

// newFlights is a node of which the test sees the requests in flight.
func newFlights(t *testing.T, policies string) (*node, *inflight.Book) {
	t.Helper()
	n := newNode(t, false, policies)
	book := newBook(n.data, 1)
	n.limiter = limiter.New(limiter.Config{Store: bucketstore.New(n.data, [4]byte{}, 1024, 0), Flights: book})
	return n, book
}

// end ends the stream of a request.
func (n *node) end(req *limiter.Request) {
	n.t.Helper()
	if !req.Lasting {
		n.t.Error("nothing is to be done at the request's end")
	}
	n.limiter.End(req, limiter.Life{Ended: n.now})
}

// fill makes requests until a request is not allowed, and returns the allowed requests.
func (n *node) fill(headers ...string) (open []*limiter.Request, last *limiter.Request) {
	for {
		req, status := n.begin(headers...)
		if status != limiter.Allowed {
			return open, req
		}
		open = append(open, req)
	}
}

// With max_wait a request waits for a place, is refused when its time is over, and leaves its seat
// in the queue when its client goes.
func TestInFlightWaits(t *testing.T) {
	n, book := newFlights(t, `{"name":"p","partition":[],"limit":{"in_flight":2},"max_wait":"100ms","mode":"local"}`)
	open, first := n.fill()
	gone, gs := n.begin()
	full, fs := n.begin()
	if len(open) != 2 || gs != limiter.Paused || fs != limiter.Refused || full.Reason != policy.ReasonInFlight ||
		n.rules.Paused != 2 {
		t.Fatalf("%d, %v, %v: %d paused", len(open), gs, fs, n.rules.Paused)
	}
	n.limiter.Cancel(gone, n.now)
	second, ss := n.begin()
	n.end(open[0])
	if got := fmt.Sprint(book.TakeResolved(9), ss); got != fmt.Sprint([]uint32{first.Stream}, limiter.Paused) {
		t.Fatal(got)
	}
	if status := n.limiter.Resume(first, n.now); status != limiter.Allowed || !first.Lasting {
		t.Fatal(status)
	}
	n.now += 100 * millisecond
	book.Tick(n.now)
	if got := fmt.Sprint(book.TakeResolved(9)); got != fmt.Sprint([]uint32{second.Stream}) {
		t.Fatal(got)
	}
	if status := n.limiter.Resume(second, n.now); status != limiter.Refused || second.Reason != policy.ReasonInFlight ||
		n.rules.Paused != 0 {
		t.Errorf("%v, %v, %d paused", status, second.Reason, n.rules.Paused)
	}
	n.end(open[1])
	n.end(first)
	if all, _ := n.fill(); len(all) != 2 {
		t.Errorf("%d places at rest", len(all))
	}
	if n.limiter.Stats.Waited != 0 || book.Stats.Queued != 4 {
		t.Errorf("%d waited for the control plane, %d for a place", n.limiter.Stats.Waited, book.Stats.Queued)
	}
}

// A request that was given a place gives it back if its client goes before it has gone on.
func TestInFlightIsLeftBeforeItGoesOn(t *testing.T) {
	n, book := newFlights(t, `{"name":"p","partition":[],"limit":{"in_flight":1},"max_wait":"100ms","mode":"local"}`)
	open, waiting := n.fill()
	n.end(open[0])
	if got := book.TakeResolved(9); len(got) != 1 || got[0] != waiting.Stream {
		t.Fatalf("resolved %v, want %d", got, waiting.Stream)
	}
	n.limiter.Cancel(waiting, n.now)
	if all, _ := n.fill(); len(all) != 1 {
		t.Errorf("%d places at rest", len(all))
	}
}

// Two policies that have a place for a request at the same moment have its stream resolved twice.
// The second time changes nothing, also if a leaky bucket holds the request back meanwhile.
func TestARequestIsDecidedOnceThatWaitedForTwoPlaces(t *testing.T) {
	n, book := newFlights(t, `
		{"name":"a","partition":[],"limit":{"in_flight":1},"max_wait":"1s","mode":"local"},
		{"name":"b","partition":[],"limit":{"in_flight":1},"max_wait":"1s","mode":"local"},
		{"name":"q","partition":[],"algorithm":"leaky_bucket","limit":{"quota":10,"window":"1s","burst":2},"mode":"local"}`)
	open, second := n.fill()
	n.end(open[0])
	if got := fmt.Sprint(book.TakeResolved(9)); got != fmt.Sprint([]uint32{second.Stream, second.Stream}) {
		t.Fatalf("resolved %s", got)
	}
	first, again := n.limiter.Resume(second, n.now), n.limiter.Resume(second, n.now)
	if first != limiter.Delayed || again != limiter.Paused || n.limiter.Stats.Allowed != 2 {
		t.Errorf("%v, then %v; %d allowed", first, again, n.limiter.Stats.Allowed)
	}
	n.now += sec
	n.released(second.Stream)
}

// An order that lifts a limit of requests in flight lets all through and counts them: when it ends,
// none is let in before fewer are in flight than may be.
func TestAnOrderThatIsLiftedUnderLoad(t *testing.T) {
	const policies = `{"name":"p","match":{"paths":["/"]},"partition":[],"limit":[{"in_flight":3},{"quota":1000,"window":"1h"}],"mode":"local"}`
	for name, order := range map[string]wire.Order{
		"everything":    {State: policy.EnforcedOff, Percent: 100},
		"the policy":    {State: policy.EnforcedOff, Percent: 100, Policy: []byte("p")},
		"into shadow":   {State: policy.EnforcedShadow, Percent: 100, Policy: []byte("p")},
		"all to shadow": {State: policy.EnforcedShadow, Percent: 100},
	} {
		n, _ := newFlights(t, policies)
		before, _ := n.fill()
		n.rules.Index.Enforce(&wire.Enforcement{Orders: []wire.Order{order}}, 0)
		var during []*limiter.Request
		for range 5 {
			req, status := n.begin()
			if status != limiter.Bypassed && status != limiter.Unlimited || !req.Lasting {
				t.Fatalf("%s: %v, lasting %v", name, status, req.Lasting)
			}
			during = append(during, req)
		}
		n.rules.Index.Enforce(&wire.Enforcement{}, 0)
		if more, _ := n.fill(); len(before) != 3 || len(more) != 0 {
			t.Errorf("%s: %d before, %d after it beside %d", name, len(before), len(more), len(during))
		}
		for _, req := range append(before, during[:3]...) {
			n.end(req)
		}
		if more, _ := n.fill(); len(more) != 1 {
			t.Errorf("%s: %d where two of three places are taken", name, len(more))
		}
	}
}
