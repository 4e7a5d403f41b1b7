// Package dialect has the dialects of limit headers in answers, one row each, and writes their
// values. All functions append to a buffer of the caller and allocate nothing.
package dialect

import (
	"math"
	"math/bits"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// Item is one policy's part in a decision.
type Item struct {
	// Name is the policy's name: a-z 0-9 . _ - only, so it needs no escaping.
	Name []byte
	// Burst is the number of tokens that an idle caller may take at once, Window the time in which
	// they refill.
	Burst  int64
	Window quota.Span
	// Remaining is the number of whole tokens left.
	Remaining int64
	// Cost is the cost of the request, in tokens.
	Cost int64
	// Policy is the index of the policy, and Bucket the key of the bucket.
	Policy uint32
	Bucket keyhash.Key
	// InFlight means that Burst is a number of requests in flight. There is no Window, and the end
	// of a request is unknown.
	InFlight bool
	// Reset is the time until the bucket is full or, for a refusal, the wait of Retry-After;
	// quota.Never for a bucket that nothing fills, and if no time is shown.
	Reset quota.Span
}

// Seconds rounds a span up to whole seconds.
func Seconds(span quota.Span) int64 {
	if span <= 0 {
		return 0
	}
	return int64((span-1)/quota.Second) + 1
}

// maxSpread is the longest addition to a Retry-After.
const maxSpread = 30 * quota.Second

// RetryAfter returns the Retry-After of a refusal that ends after wait, at the instant ready: whole
// seconds, at least 1, rounded up. It is up to 10 % and 30 s later, so that callers refused
// together do not return together. The addition is whole seconds, so a short wait has none. It
// depends on seed, which belongs to the bucket, and on the second in which the refusal ends, so it
// is the same in each answer.
func RetryAfter(wait quota.Span, ready quota.Instant, seed uint32) int64 {
	h := seed ^ uint32(ready/quota.Instant(quota.Second))*2654435761
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	spread := min(wait/10, maxSpread) / 1024 * quota.Span(h%1024)
	return max(1, Seconds(wait)) + int64(spread/quota.Second)
}

// AppendPolicies writes RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11):
// "name";q=100;w=60, or for requests in flight "name";q=20;qu="concurrent-requests".
func AppendPolicies(dst []byte, items []Item) []byte {
	for i := range items {
		it := &items[i]
		dst = appendName(dst, i, it)
		dst = AppendInt(append(dst, ";q="...), it.Burst)
		if it.InFlight {
			dst = append(dst, `;qu="concurrent-requests"`...)
			continue
		}
		dst = AppendInt(append(dst, ";w="...), max(1, Seconds(it.Window)))
	}
	return dst
}

// AppendLimits writes RateLimit of the same draft: "name";r=50;t=30, without t for requests in
// flight, and where Reset is quota.Never.
func AppendLimits(dst []byte, items []Item) []byte {
	for i := range items {
		it := &items[i]
		dst = appendName(dst, i, it)
		dst = AppendInt(append(dst, ";r="...), it.Remaining)
		if !it.InFlight && it.Reset != quota.Never {
			dst = AppendInt(append(dst, ";t="...), Seconds(it.Reset))
		}
	}
	return dst
}

// Nearest returns the index of the item that is nearest to exhaustion by share of its burst; -1 for
// none.
func Nearest(items []Item) int {
	best := -1
	for i := range items {
		if best < 0 || isNearer(items[i], items[best]) {
			best = i
		}
	}
	return best
}

// isNearer compares the shares by cross-multiplication.
func isNearer(a, b Item) bool {
	ah, al := bits.Mul64(uint64(max(a.Remaining, 0)), uint64(b.Burst))
	bh, bl := bits.Mul64(uint64(max(b.Remaining, 0)), uint64(a.Burst))
	return ah < bh || ah == bh && al < bl
}

// appendName begins the i-th item of a list.
func appendName(dst []byte, i int, it *Item) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	return append(append(append(dst, '"'), it.Name...), '"')
}

// AppendInt writes n in decimal.
func AppendInt(dst []byte, n int64) []byte {
	if n < 0 {
		return AppendInt(append(dst, '-'), -n)
	}
	var digits [20]byte
	at := len(digits)
	for ; n > math.MaxUint32; n /= 10 {
		at--
		digits[at] = byte('0' + n%10)
	}
	for rest := uint32(n); ; { // WebAssembly divides 32 bits faster.
		at--
		digits[at] = byte('0' + rest%10)
		if rest /= 10; rest == 0 {
			return append(dst, digits[at:]...)
		}
	}
}
