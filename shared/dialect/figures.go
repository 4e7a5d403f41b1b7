package dialect

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// figure is the content of a header.
type figure uint8

// The figures of the shown item, and the figures of all items. A header without a figure is not
// written.
const (
	silent figure = iota
	burst
	left
	used
	name
	// bucket is an opaque name of the bucket, scope the group that shares it.
	bucket
	scope
	// resetAt is the Unix second at which the bucket is full, resetIn the seconds until then, and
	// resetAfter the same with milliseconds.
	resetAt
	resetIn
	resetAfter
	// bursts is the burst of the shown item, then the bursts of all items with their windows.
	// policies and limits are the fields RateLimit-Policy and RateLimit.
	bursts
	policies
	limits
)

// Shown is the content of a decision's headers.
type Shown struct {
	Items []Item
	// At is the index of the item that the older dialects show.
	At int
	// Wall is the Unix time in microseconds.
	Wall int64
	// Scope is the group that shares that item's bucket.
	Scope string
}

// AppendValue appends the header's value. It reports false if there is none: if nothing fills a
// bucket, no header has the time when it is full.
func (h *Header) AppendValue(dst []byte, s *Shown) ([]byte, bool) {
	// The fields about all items.
	switch h.says {
	case silent:
		return dst, false
	case bursts:
		return AppendEnvoyLimit(dst, s.Items[s.At].Burst, s.Items), true
	case policies:
		return AppendPolicies(dst, s.Items), true
	case limits:
		return AppendLimits(dst, s.Items), true
	}
	// The fields about the shown item.
	item, n := &s.Items[s.At], int64(0)
	if h.says >= resetAt && item.Reset == quota.Never {
		return dst, false
	}
	switch h.says {
	case burst:
		n = item.Burst
	case left:
		n = item.Remaining
	case used:
		n = item.Burst - item.Remaining
	case name:
		return append(dst, item.Name...), true
	case bucket:
		return appendBucketID(dst, &item.Bucket), true
	case scope:
		return text.Append(dst, s.Scope), true
	case resetAt:
		n = ResetAt(s.Wall, item.Reset)
	case resetIn:
		n = Seconds(item.Reset)
	case resetAfter:
		return AppendSeconds(dst, item.Reset), true
	}
	return AppendInt(dst, n), true
}

// appendBucketID folds one half of a bucket's key onto the other, so that it names the bucket and
// does not reveal the key.
func appendBucketID(dst []byte, key *keyhash.Key) []byte {
	const digits = "0123456789abcdef"
	for i := range 8 {
		c := key[i] ^ key[i+8]
		dst = append(dst, digits[c>>4], digits[c&15])
	}
	return dst
}
