package dialect

import "github.com/weir-proxy/weir/shared/quota"

// ResetAt returns the X-RateLimit-Reset of most readers, such as GitHub and Discord: the Unix
// second at which the bucket is full again, given the wall clock in microseconds.
func ResetAt(wall int64, reset quota.Span) int64 {
	return (wall+int64(reset)-1)/int64(quota.Second) + 1
}

// AppendEnvoyLimit writes the X-RateLimit-Limit of Envoy's DRAFT_VERSION_03: the limit shown, then
// every policy with its window: 10, 10;w=1;name="per-ip", 1000;w=3600;name="daily".
func AppendEnvoyLimit(dst []byte, shown int64, items []Item) []byte {
	dst = AppendInt(dst, shown)
	for _, it := range items {
		dst = AppendInt(append(dst, ", "...), it.Burst)
		dst = AppendInt(append(dst, ";w="...), max(1, Seconds(it.Window)))
		dst = append(append(append(dst, `;name="`...), it.Name...), '"')
	}
	return dst
}

// AppendSeconds writes a span like Discord's X-RateLimit-Reset-After: seconds with milliseconds,
// rounded up.
func AppendSeconds(dst []byte, span quota.Span) []byte {
	ms := int64((max(span, 0) + quota.Millisecond - 1) / quota.Millisecond)
	dst = append(AppendInt(dst, ms/1000), '.')
	return append(dst, byte('0'+ms/100%10), byte('0'+ms/10%10), byte('0'+ms%10))
}

// LeastRemaining returns the smallest r of a RateLimit value (draft 11), perhaps of another
// limiter. It reports false for a value without r: clients ignore it too.
func LeastRemaining(value []byte) (int64, bool) {
	least, found, quoted := int64(0), false, false
	for i := range value {
		switch {
		case value[i] == '"':
			quoted = !quoted
		case quoted || value[i] != ';' || i+2 >= len(value) || value[i+1] != 'r' || value[i+2] != '=':
		default:
			if n, ok := ParseInt(leadingDigits(value[i+3:])); ok && (!found || n < least) {
				least, found = n, true
			}
		}
	}
	return least, found
}

func leadingDigits(b []byte) []byte {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	return b[:n]
}

// ParseInt reads decimal digits, at most 15 as in structured fields.
func ParseInt(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 15 || len(leadingDigits(b)) != len(b) {
		return 0, false
	}
	var n int64
	for _, c := range b {
		n = n*10 + int64(c-'0')
	}
	return n, true
}
