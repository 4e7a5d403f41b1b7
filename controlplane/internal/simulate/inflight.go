package simulate

import (
	"slices"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// fly looks for a place in flight, and with commit takes it for as long as the request lasts.
func (b *bucket) fly(limit *policy.Limit, now quota.Instant, lasts quota.Span, commit bool) quota.Result {
	if limit.Window > 0 {
		lasts = min(lasts, limit.Window)
	}
	ended, _ := slices.BinarySearch(b.ends, now+1)
	b.ends = slices.Delete(b.ends, 0, ended)
	if int64(len(b.ends)) >= limit.Quota {
		return quota.Result{RetryAfter: quota.Second}
	}
	if commit {
		end := now + quota.Instant(lasts)
		at, _ := slices.BinarySearch(b.ends, end)
		b.ends = slices.Insert(b.ends, at, end)
		b.full = b.ends[len(b.ends)-1]
	}
	return quota.Result{Allowed: true}
}
