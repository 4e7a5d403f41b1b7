package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A client says when its next tick has something to do.
func TestNextDue(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	is := func(what string, want quota.Instant) {
		t.Helper()
		if got := w.client.NextDue(w.now); got != want {
			t.Errorf("%s: due at %d, want %d", what, got, want)
		}
	}
	w.client.Tick(w.now)
	is("nothing to do", quota.Forever)
	w.client.Prefetch(w.need(1, 1), 5, w.now+40*ms, [2]lease.Spent{})
	w.client.Prefetch(w.need(2, 1), 5, w.now+25*ms, [2]lease.Spent{})
	is("tokens to keep", w.now+25*ms)
	w.now += 25 * ms
	w.client.Tick(w.now)
	is("a call under way, which may be late", w.now+250*ms)
	w.now += 5 * ms
	w.answer(w.now)
	is("answered", quota.Forever)
	w.join(t, 3, 1)
	is("a request waits", w.now)
	w.client.Flush(w.now)
	w.answer(w.now)
	w.client.TakeResolved(10)
	is("it has its tokens", quota.Forever)
	w.client.Report(w.now, w.need(4, 1), w.now+300*ms)
	is("a report", w.now+300*ms)
	w.join(t, 5, 1)
	w.calls[len(w.calls)-1].done(0, nil)
	w.client.TakeResolved(10)
	is("one call failed", w.now+300*ms)
	for range 2 {
		w.join(t, 5, 1)
		w.calls[len(w.calls)-1].done(0, nil)
		w.client.TakeResolved(10)
	}
	is("the control plane is away", w.now)
}

// NextResume returns when requests go on: with tokens, with gathered calls, or late.
func TestWhenRequestsGoOn(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	if at := w.client.NextResume(w.now); at != quota.Forever {
		t.Errorf("at %d without requests", at)
	}
	w.join(t, 1, 1)
	w.client.Flush(w.now)
	if at := w.client.NextResume(w.now); at != w.now+quota.Instant(lease.Deadline) {
		t.Errorf("at %d while the call is under way, now is %d", at, w.now)
	}
	w.join(t, 2, 1)
	w.client.Flush(w.now)
	if at := w.client.NextResume(w.now); at <= w.now || at > w.now+5*ms {
		t.Errorf("the gathered call leaves at %d, now is %d", at, w.now)
	}
	w.answer(w.now)
	if at := w.client.NextResume(w.now); at != w.now {
		t.Errorf("tokens are there, and the request goes on at %d", at)
	}
}
