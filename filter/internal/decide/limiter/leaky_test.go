package limiter_test

import (
	"slices"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/quota"
)

// leaky is a policy of ten requests a second, of which two may wait.
func leaky(mode string) string {
	return `{"name":"p","partition":[],"algorithm":"leaky_bucket","limit":{"quota":10,"window":"1s","burst":2},"mode":"` + mode + `"}`
}

// arrive makes a request, lets the control plane answer if it must, and wants it delayed by a
// number of milliseconds; -1 is a refusal.
func (n *node) arrive(want quota.Span) *limiter.Request {
	n.t.Helper()
	req, status := n.decide()
	switch {
	case want < 0 && status != limiter.Refused, want == 0 && status != limiter.Allowed, want > 0 &&
		status != limiter.Delayed, want >= 0 && req.Delay != want:
		n.t.Errorf("stream %d at %d: %v, delayed by %d, want %d", req.Stream, n.now, status, req.Delay, want)
	}
	return req
}

func (n *node) released(want ...uint32) {
	n.t.Helper()
	if got := n.limiter.Release(n.now, 99); !slices.Equal(got, want) {
		n.t.Errorf("at %d: %v go on, want %v", n.now, got, want)
	}
}

// A turn that cannot go back, because another has come behind it, serves the next request of this
// worker; once.
func TestAPlaceInTheMiddleIsKept(t *testing.T) {
	n := newNode(t, true, leaky("local"))
	other := newNode(t, true, leaky("local"))
	other.limiter = n.second()
	n.arrive(0)
	a := n.arrive(100 * quota.Millisecond)
	other.now = n.now
	b := other.arrive(200 * quota.Millisecond)
	n.limiter.Cancel(a, n.now)
	other.arrive(-1)
	c := n.arrive(100 * quota.Millisecond)
	for _, r := range []*limiter.Request{b, c} { // Both learn the same instant, when their answers leave.
		if full := r.Delay + r.Hits[0].Reset; full != 300*quota.Millisecond {
			t.Errorf("a request that waits %d reads that the bucket is full after %d", r.Delay, full)
		}
	}
	n.arrive(-1)
	n.limiter.Cancel(c, n.now)
	n.now += 100 * ms // It passes unused, and counts as used.
	n.arrive(200 * quota.Millisecond)
	other.now = n.now + 100*ms
	other.released(b.Stream)
}

// At the control plane nothing goes back: the turn serves the next request of this worker.
func TestLeavingAStrictQueue(t *testing.T) {
	n := newNode(t, true, leaky("strict"))
	n.arrive(0)
	a, b := n.arrive(100*quota.Millisecond), n.arrive(200*quota.Millisecond)
	n.limiter.Cancel(a, n.now)
	c := n.arrive(200 * quota.Millisecond)
	if len(n.calls) != 0 {
		t.Error("the control plane was asked for a turn that is here")
	}
	if shown, before := c.Delay+c.Hits[0].Reset, b.Delay+b.Hits[0].Reset; shown < before {
		t.Errorf("the bucket is full after %d by its header, after %d", shown, before)
	}
	n.now += 200 * ms
	n.released(b.Stream, c.Stream)
}

// Tokens that were lent before the limit became a queue are no places in it, and a request that
// costs nothing needs none.
func TestAQueueHasNoTokensInHand(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":[],"limit":{"quota":10,"window":"1s"},"mode":"strict"}`)
	gone, _ := n.begin()
	n.limiter.Cancel(gone, n.now)
	n.calls[0](200) // Its token stays.
	n.calls = nil
	n.push(2, leaky("strict"))
	if _, status := n.begin(); status != limiter.Paused {
		t.Errorf("%v without asking", status)
	}
	n.push(3, `{"name":"p","partition":[],"algorithm":"leaky_bucket","cost":{"header":"x-cost","max":5},"limit":{"quota":10,"window":"1s"},"mode":"strict"}`)
	n.calls[0](200)
	n.calls = nil
	req, status := n.begin("x-cost", "0")
	if status != limiter.Paused {
		t.Fatalf("%v at no cost: the control plane has not been asked for the level", status)
	}
	if status = n.answer(200, req); status != limiter.Allowed {
		t.Errorf("%v at no cost", status)
	}
}
