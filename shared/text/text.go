// Package text has functions for the bytes of requests and messages. The standard library's
// functions convert to strings, and TinyGo allocates for that.
package text

// Equal reports whether two texts are the same.
func Equal(a, b []byte) bool { return len(a) == len(b) && hasPrefix(a, b) }

// Is reports whether b is the text s.
func Is(b []byte, s string) bool { return len(b) == len(s) && hasPrefix(b, s) }

// HasPrefix reports whether b begins with prefix.
func HasPrefix(b []byte, prefix string) bool { return len(b) >= len(prefix) && hasPrefix(b, prefix) }

// hasPrefix expects that b is at least as long as prefix.
func hasPrefix[T []byte | string](b []byte, prefix T) bool {
	for i := range len(prefix) {
		if b[i] != prefix[i] {
			return false
		}
	}
	return true
}

// Append appends a text. A call of it is shorter than TinyGo's code for append.
//
//go:noinline
func Append(dst []byte, s string) []byte { return append(dst, s...) }

// Cut splits at the first separator. Without a separator, before is all of b.
func Cut(b []byte, separator byte) (before, after []byte) {
	for i := range b {
		if b[i] == separator {
			return b[:i], b[i+1:]
		}
	}
	return b, nil
}

// Trim returns b without the spaces and tabs around it.
func Trim(b []byte) []byte {
	for len(b) > 0 && isBlank(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isBlank(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// Unhex reads two hexadecimal digits; false if they are not digits.
func Unhex(high, low byte) (byte, bool) {
	h, ok := HexDigit(high)
	if !ok {
		return 0, false
	}
	l, ok := HexDigit(low)
	return h<<4 | l, ok
}

// HexDigit reads one hexadecimal digit; false if it is not a digit.
func HexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
