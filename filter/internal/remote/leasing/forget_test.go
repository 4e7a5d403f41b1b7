package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// The answer to a call for tokens to keep alone may come when its bucket was dropped and another
// stands under its key. That one stays, with the requests that wait in it: they can be withdrawn,
// and there is one call for them.
func TestLateKeepLeavesTheNewBucket(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.client.Prefetch(w.need(1, 1), 5, 0, [2]lease.Spent{})
	w.client.Tick(w.now)
	w.join(t, 2, 1) // A request waits, so the next tick looks after all buckets.
	w.now += 10 * ms
	w.client.Tick(w.now)
	ticket := w.join(t, 1, 1)
	if len(w.calls) != 3 || w.calls[0].request.Items[0].Keep != 5 {
		t.Fatalf("%+v", w.calls)
	}
	w.reply(wire.LeaseAnswer{NotBefore: quota.Hour})
	second := w.join(t, 1, 1)
	if len(w.calls) != 2 {
		t.Errorf("%d calls are under way, want a call for each bucket", len(w.calls))
	}
	w.client.Cancel(ticket.Stream)
	w.client.Cancel(second.Stream)
	if w.client.Waiting() != 1 {
		t.Errorf("%d wait, want only the request for the other bucket", w.client.Waiting())
	}
}
