package redisstore_test

import (
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// The clock of Redis is set back by an hour. A bucket in use neither waits for that hour, nor gets
// the hour's tokens again; no time has passed for it. If the clock is behind by less than a minute,
// as after a takeover, the bucket waits for it.
func TestAClockThatIsSetBackIsNotWaitedFor(t *testing.T) {
	s, set := virtual(t, open(t, redistest.Start(t)))
	p := params(t, 10, quota.Second, 100)
	begin := quota.Instant(1_800_000_000_000_000)
	for i, step := range []struct {
		at         quota.Instant
		want, have int64
	}{
		{begin, 100, 100}, // Nothing is left.
		{begin + quota.Instant(quota.Second), 100, 10}, // A second earns this.
		{begin - quota.Instant(30*quota.Second), 100, 0},
		{begin + quota.Instant(2*quota.Second), 100, 10},
		{begin - quota.Instant(quota.Hour), 100, 0},
		{begin - quota.Instant(quota.Hour) + quota.Instant(quota.Second), 100, 10},
		{begin + quota.Instant(3*quota.Second), 100, 100}, // Forward again: as if an hour had passed.
		{begin - quota.Instant(quota.Hour), 100, 0},
	} {
		set(step.at)
		if g := one(t, s, keyhash.Key{7}, p, step.want); g.Waiting != step.have {
			t.Errorf("step %d: %d granted, want %d", i, g.Waiting, step.have)
		}
	}
}

// The same holds for windows: they go on where they were, so that uses are forgotten a window later
// and no hour later.
func TestWindowsOfAClockThatIsSetBackEnd(t *testing.T) {
	s, set := virtual(t, open(t, redistest.Start(t)))
	begin := quota.Instant(1_800_000_000_000_000)
	for i, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter,
		quota.SlidingLog} {
		grant := func(at quota.Instant) lease.Grant {
			set(at)
			return askFor(t, s, leases.Item{Bucket: keyhash.Key{7, byte(i)},
				Ask: window(t, a, 100, quota.Minute, 100)})[0]
		}
		if g := grant(begin); g.Waiting != 100 {
			t.Fatalf("%v gives %d of 100", a, g.Waiting)
		}
		back := begin - quota.Instant(quota.Hour)
		g := grant(back)
		if g.Waiting != 0 || g.NotBefore > 2*quota.Minute {
			t.Errorf("set back, %v gives %d and says that there is more in %v", a, g.Waiting, g.NotBefore)
		}
		if g := grant(back + quota.Instant(3*quota.Minute)); g.Waiting != 100 {
			t.Errorf("three minutes later %v gives %d", a, g.Waiting)
		}
	}
}
