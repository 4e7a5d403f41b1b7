package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
)

// legacy writes one of the older dialects for the item at index shown.
func (h *Headers) legacy(dialect policy.Legacy, req *limiter.Request, shown int, wall int64) {
	item, hit := h.items[shown], &req.Hits[h.hits[shown]]
	h.shown = item.Remaining
	switch dialect {
	case policy.LegacyRateLimit:
		h.number("ratelimit-limit", item.Burst)
		h.number("ratelimit-remaining", item.Remaining)
		h.reset("ratelimit-reset", item.Reset, ratelimitheader.Seconds(item.Reset))
		h.least = item.Remaining
		return
	case policy.LegacyEnvoy:
		h.buf = ratelimitheader.AppendEnvoyLimit(h.buf, item.Burst, h.items)
		h.close("x-ratelimit-limit")
		h.number("x-ratelimit-remaining", item.Remaining)
		h.reset("x-ratelimit-reset", item.Reset, ratelimitheader.Seconds(item.Reset))
		return
	}
	h.number("x-ratelimit-limit", item.Burst)
	h.number("x-ratelimit-remaining", item.Remaining)
	h.reset("x-ratelimit-reset", item.Reset, ratelimitheader.ResetAt(wall, item.Reset))
	switch dialect {
	case policy.LegacyGitHub:
		h.number("x-ratelimit-used", item.Burst-item.Remaining)
		h.buf = append(h.buf, item.Name...)
		h.close("x-ratelimit-resource")
	case policy.LegacyDiscord:
		h.buf = appendBucketID(h.buf, hit)
		h.close("x-ratelimit-bucket")
		if item.Reset != quota.Never {
			h.buf = ratelimitheader.AppendSeconds(h.buf, item.Reset)
			h.close("x-ratelimit-reset-after")
		}
		h.add("x-ratelimit-scope", req.Rules().Index.Scope(hit.Policy).String())
	}
}

// appendBucketID writes an opaque name of the bucket: one half of its key folded onto the other. So
// it names the bucket and does not reveal the key.
func appendBucketID(dst []byte, hit *limiter.Hit) []byte {
	const digits = "0123456789abcdef"
	for i := range 8 {
		c := hit.Key[i] ^ hit.Key[i+8]
		dst = append(dst, digits[c>>4], digits[c&15])
	}
	return dst
}
