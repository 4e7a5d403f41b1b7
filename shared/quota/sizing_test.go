package quota_test

import (
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// The worked example of docs/choose/choosing.md: 8 processes that each work on 25 requests at once
// for 40 ms, and a limit of 3500 a second with a burst of 300. However many come, no request that
// passes waits longer than burst / capacity = 60 ms. Twice the burst waits twice as long.
func TestABurstWaitsAsLongAsThePageSays(t *testing.T) {
	for _, c := range []struct {
		burst int64
		most  quota.Span
	}{{300, 60 * quota.Millisecond}, {600, 120 * quota.Millisecond}} {
		p, err := quota.NewParams(3500, quota.Second, c.burst)
		if err != nil {
			t.Fatal(err)
		}
		if waited := longestWait(p, 8*25, 40*quota.Millisecond); waited > c.most || waited < c.most/2 {
			t.Errorf("a burst of %d waits %d µs at most; the page says %d", c.burst, waited, c.most)
		}
	}
}

// longestWait is how long a request waits for a free place if callers send more than may pass, for
// two seconds. A place is busy for as long as a request takes; the next one goes to the place that
// is free first.
func longestWait(p quota.Params, places int, takes quota.Span) (longest quota.Span) {
	var s quota.State
	free := make([]quota.Instant, places)
	for now := quota.Instant(0); now < quota.Instant(2*quota.Second); now += 50 {
		for {
			next, r := p.Take(s, now, 1)
			if !r.Allowed {
				break
			}
			s = next
			first := slices.Index(free, slices.Min(free))
			begins := max(now, free[first])
			longest = max(longest, quota.Span(begins-now))
			free[first] = begins + quota.Instant(takes)
		}
	}
	return longest
}
