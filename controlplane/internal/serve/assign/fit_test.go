package assign_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// A limit is let through in full if its burst is three seconds of its rate, and otherwise as often
// as its burst can be leased.
func TestThroughput(t *testing.T) {
	for _, c := range []struct {
		limit  int64
		window quota.Span
		burst  int64
		want   string
	}{
		{100, quota.Second, 300, "100 to 100, full: true"},
		{100, quota.Second, 299, "100 to 100, full: false"},
		{100, quota.Second, 100, "40 to 80, full: false"},
		{60, quota.Minute, 60, "1 to 1, full: true"},
	} {
		least, most, full := assign.Throughput(params(t, c.limit, c.window, c.burst))
		if got := fmt.Sprintf("%d to %d, full: %v", least, most, full); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A limit that the quota filters cannot be assigned has a reason.
func TestUnfit(t *testing.T) {
	inFlight := policy.Limit{}
	inFlight.InFlight = true
	leased := policy.Policy{Mode: policy.ModeLeased}
	limit := func(a quota.Algorithm, window quota.Span) (l policy.Limit) {
		l.Algorithm, l.Window = a, window
		return l
	}
	for _, c := range []struct {
		p    policy.Policy
		l    policy.Limit
		want string
	}{
		{leased, limit(quota.TokenBucket, quota.Second), ""},
		{leased, limit(quota.SlidingWindow, 2*quota.Second), ""},
		{leased, limit(quota.FixedWindow, quota.Second), "its window is under 2s"},
		{leased, limit(quota.LeakyBucket, quota.Minute), "its algorithm decides single requests"},
		{leased, limit(quota.SlidingWindowCounter, quota.Minute), "its algorithm decides single requests"},
		{leased, inFlight, "it counts requests in flight"},
		{policy.Policy{Mode: policy.ModeLocal}, limit(quota.TokenBucket, quota.Minute),
			"each Envoy counts it by itself"},
	} {
		if got := assign.Unfit(&c.p, c.l); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}
