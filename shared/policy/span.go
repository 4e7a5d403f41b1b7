package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/quota"
)

// units are in falling order, so that FormatSpan uses the largest unit that divides.
var spanUnits = [...]struct {
	name string
	span quota.Span
}{{"d", quota.Day}, {"h", quota.Hour}, {"m", quota.Minute}, {"s", quota.Second}, {"ms", quota.Millisecond}}

// ParseSpan reads a whole number and a unit: ms s m h d. It refuses everything else, signs and
// overflows included.
func ParseSpan(text string) (quota.Span, bool) {
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	n, ok := parseInt(text[:digits])
	if !ok {
		return 0, false
	}
	for _, u := range spanUnits {
		if u.name == text[digits:] {
			return quota.Span(n) * u.span, n <= int64(quota.Never/u.span)
		}
	}
	return 0, false
}

// FormatSpan writes a span in the largest unit that divides it; a span that is not whole
// milliseconds is rounded up to one.
func FormatSpan(span quota.Span) string { return string(AppendSpan(nil, span)) }

// AppendSpan appends the result of FormatSpan.
func AppendSpan(dst []byte, span quota.Span) []byte {
	if span == 0 {
		return append(dst, "0s"...)
	}
	for _, u := range spanUnits {
		if span%u.span == 0 {
			return append(strconv.AppendInt(dst, int64(span/u.span), 10), u.name...)
		}
	}
	return append(strconv.AppendInt(dst, int64(span/quota.Millisecond)+1, 10), "ms"...)
}
