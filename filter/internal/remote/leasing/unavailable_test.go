package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// away is the answer for a bucket whose part of the store has not answered for 3 s.
var away = wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: 3 * quota.Second}

// A part of the store that is away fails its own buckets, since when it says; the control plane is
// not away.
func TestAnUnavailableBucketFailsAlone(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	asked, behind := w.join(t, 1, 1), w.join(t, 1, 1)
	w.reply(away)
	if asked.Outcome != leasing.Failed || asked.Since != w.now-3000*ms {
		t.Errorf("the ticket ended as %v since %d, now is %d", asked.Outcome, asked.Since, w.now)
	}
	if since := w.client.Health.FailingSince(w.now); since != w.now {
		t.Errorf("the whole control plane fails since %d", since)
	}
	if behind.Outcome != leasing.Waiting || len(w.calls) != 1 {
		t.Errorf("who queued behind is %v, with %d calls under way", behind.Outcome, len(w.calls))
	}
	w.reply(away)
	for range 10 { // However often: other buckets are asked for.
		w.join(t, 1, 1)
		w.reply(away)
	}
	other := w.join(t, 2, 1)
	w.reply(granted)
	if other.Outcome != leasing.Granted {
		t.Errorf("another bucket: %v", other.Outcome)
	}
}

// If one bucket of a group is away, the other buckets are granted all or none, and the ladder
// decides for that bucket only.
func TestAGroupGoesOnWithoutTheUnavailable(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	tickets := w.joinAll(t, 1, 2, 3)
	w.reply(granted, away, granted)
	outcomes(t, tickets, leasing.Granted, leasing.Failed, leasing.Granted)
	if tickets[1].Since != w.now-3000*ms {
		t.Errorf("failing since %d", tickets[1].Since)
	}
	tickets = w.joinAll(t, 4, 5, 6)
	w.reply(spared, away, short)
	outcomes(t, tickets, leasing.Spared, leasing.Failed, leasing.Refused)
	if w.client.Waiting() != 0 {
		t.Errorf("%d wait", w.client.Waiting())
	}
}
