package simulate

import (
	"slices"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// takePlace looks for a place in flight. With commit it takes the place for as long as the request
// lasts. With a max_wait, a request waits for a place. At most limit.Quota requests wait.
func (b *bucket) takePlace(limit *policy.Limit, now quota.Instant, lasts quota.Span, commit bool) quota.Result {
	if limit.Window > 0 {
		lasts = min(lasts, limit.Window)
	}
	over := func(until quota.Instant) bool { return until <= now }
	b.ends, b.waits = slices.DeleteFunc(b.ends, over), slices.DeleteFunc(b.waits, over)
	begins := now
	if free := int64(len(b.ends)) - limit.Quota; free >= 0 {
		begins = b.ends[free]
		wait := quota.Span(begins - now)
		if wait > limit.MaxWait || int64(len(b.waits)) >= limit.Quota {
			if limit.MaxWait > 0 && int64(len(b.waits)) < limit.Quota { // It waits until its time is over.
				b.waits = append(b.waits, now+quota.Instant(limit.MaxWait))
			}
			return quota.Result{RetryAfter: quota.Second}
		}
	}
	if commit {
		if begins > now {
			b.waits = append(b.waits, begins)
		}
		end := begins + quota.Instant(lasts)
		at, _ := slices.BinarySearch(b.ends, end)
		b.ends = slices.Insert(b.ends, at, end)
		b.full = b.ends[len(b.ends)-1]
	}
	return quota.Result{Allowed: true}
}
