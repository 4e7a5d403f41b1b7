package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// let lets time pass, in which the worker ticks and its calls have an answer of the status.
func (n *node) let(span quota.Instant, status int) {
	for end := n.now + span; n.now < end; {
		n.now = min(n.now+10*millisecond, end)
		n.limiter.Release(n.now, 9)
		n.book.Tick(n.now)
		n.leases.Tick(n.now)
		n.answerWith(status)
	}
}

func (n *node) answerWith(status int) {
	for len(n.calls) > 0 {
		call := n.calls[0]
		n.calls = n.calls[1:]
		call(status)
		n.limiter.SettleTrials(n.now)
	}
}

// fillAsking is fill for a node that may have to ask.
func (n *node) fillAsking(headers ...string) (open []*limiter.Request, last *limiter.Request) {
	for {
		req, status := n.begin(headers...)
		for status == limiter.Paused && len(n.calls) > 0 {
			n.answerWith(200)
			n.book.TakeResolved(9)
			status = n.limiter.Resume(req, n.now)
		}
		if status != limiter.Allowed {
			return open, req
		}
		open = append(open, req)
	}
}

const leasedPlaces = `{"name":"p","partition":[],"limit":{"in_flight":%d},"mode":"leased"%s}`

func newLeased(t *testing.T, limit int, fields string) *node {
	t.Helper()
	return newNode(t, true, fmt.Sprintf(leasedPlaces, limit, fields))
}

// Idle permits go back, soon if other nodes may need them, and at rest the control plane records
// nothing.
func TestPermitsGoBack(t *testing.T) {
	n := newLeased(t, 20, "")
	n.plane.Elsewhere = 10
	open, _ := n.fillAsking()
	for _, req := range open {
		n.end(req)
	}
	n.let(60*millisecond, 200)
	if held := n.plane.Held(); held != 10 {
		t.Errorf("%d permits are held once nothing is in flight, want only the permits of other requests", held)
	}
	n.let(7*sec, 200)
	calls := 0
	n.data.Before = func(_ string, key []byte) {
		if key[4] == byte(shareddata.InFlightSlot) {
			calls++
		}
	}
	n.let(5*sec, 200)
	if calls != 0 {
		t.Errorf("%d calls into shared data at rest", calls)
	}
}

// While the control plane does not answer, permits last; then on_failure decides. Requests that it
// admits are in flight when the control plane is back, and count.
func TestInFlightWithoutTheControlPlane(t *testing.T) {
	for _, c := range []struct {
		ladder string
		want   int
		reason policy.Reason
	}{
		{`["deny"]`, 0, policy.ReasonFailure},
		{`["share"]`, 5, policy.ReasonFailure},
		{`["allow"]`, 30, 0},
	} {
		n := newLeased(t, 10, `,"on_failure":`+c.ladder)
		n.plane.Elsewhere = 8
		held, _ := n.fillAsking()
		if len(held) != 2 {
			t.Fatalf("%d by permits", len(held))
		}
		n.away()
		if req, status := n.begin(); c.ladder == `["deny"]` && (status != limiter.Refused || req.Reason != policy.ReasonFailure) {
			t.Errorf("%s: %v %v", c.ladder, status, req.Reason)
		} else if status == limiter.Allowed {
			n.end(req)
		}
		n.let(11*sec, 503)
		var open []*limiter.Request
		var last *limiter.Request
		for status := limiter.Allowed; len(held)+len(open) < 30; open = append(open, last) {
			if last, status = n.begin(); status != limiter.Allowed {
				break
			}
		}
		if got := len(held) + len(open); got != max(c.want, 2) || c.want < 30 && last.Reason != c.reason {
			t.Errorf("%s: %d in flight, then %v", c.ladder, got, last.Reason)
		}
		n.plane.Elsewhere = 9
		n.let(2*sec, 200)
		if got := n.plane.Held() - 9; got != int64(len(held)+len(open)) {
			t.Errorf("%s: the control plane counts %d, in flight are %d", c.ladder, got, len(held)+len(open))
		}
		if len(open) > 0 {
			n.end(open[0])
			if _, status := n.begin(); status == limiter.Allowed {
				t.Errorf("%s: a place was taken again that others have", c.ladder)
			}
		}
	}
}

// away has calls fail until the node takes the control plane for away.
func (n *node) away() {
	n.t.Helper()
	for range 500 {
		if _, isAway := n.leases.Health.Away(); isAway {
			n.let(20*millisecond, 503)
			return
		}
		n.begin()
		n.let(100*millisecond, 503)
	}
	n.t.Fatal("the control plane is not away")
}

// If no answer comes in time, on_failure decides a request that waits for the control plane, but
// not by the share: a late answer is no outage, and other nodes may have all permits.
func TestInFlightWithoutAnAnswer(t *testing.T) {
	for ladder, want := range map[string]limiter.Status{
		`["share"]`: limiter.Refused, `["allow"]`: limiter.Allowed, `["deny"]`: limiter.Refused,
	} {
		inFlightWithoutAnAnswer(t, ladder, want)
	}
}

func inFlightWithoutAnAnswer(t *testing.T, ladder string, want limiter.Status) {
	n := newLeased(t, 10, `,"on_failure":`+ladder)
	req, status := n.begin()
	if status != limiter.Paused {
		t.Fatal(status)
	}
	for range 6 {
		n.now += 10 * millisecond
		n.book.Tick(n.now)
	}
	if streams := n.book.TakeResolved(9); len(streams) != 1 {
		t.Fatalf("%v resolved", streams)
	}
	if _, status := n.begin(); status != limiter.Paused {
		t.Fatalf("%v, while the first one falls back", status)
	}
	status = n.limiter.Resume(req, n.now)
	if status != want || n.limiter.Stats.Unanswered != 1 ||
		status == limiter.Refused && req.Reason != policy.ReasonFailure {
		t.Errorf("%s: %v %v, %d unanswered", ladder, status, req.Reason, n.limiter.Stats.Unanswered)
	}
	n.answerWith(200)
	if held := n.plane.Held(); held == 0 {
		t.Error("the control plane knows nothing")
	}
	if status == limiter.Allowed {
		n.end(req)
	}
}
