// Package ipaddr reads IP addresses and networks, as net/netip does, and keeps IPv4 and IPv6 in one
// form. In the filter, net/netip costs 25 KB: it keeps zones in a table of unique values, which
// needs reflection.
package ipaddr

import "github.com/weir-proxy/weir/shared/text"

// Addr is an address, IPv4 in its IPv6-mapped form. The zero value is the IPv6 address "::".
type Addr [16]byte

// mapped is the number of bytes before the four bytes of an IPv4 address.
const mapped = 12

// Is4 reports whether a is an IPv4 address.
func (a Addr) Is4() bool {
	for i := range mapped {
		if want := byte(0xff); i < 10 && a[i] != 0 || i >= 10 && a[i] != want {
			return false
		}
	}
	return true
}

// IsLoopback reports whether a is in 127.0.0.0/8 or is ::1.
func (a Addr) IsLoopback() bool {
	if a.Is4() {
		return a[mapped] == 127
	}
	return a == Addr{15: 1}
}

// AppendIPv6 appends a as eight groups of hexadecimal digits without leading zeros, none left out.
func (a Addr) AppendIPv6(dst []byte) []byte {
	const digits = "0123456789abcdef"
	for i := 0; i < len(a); i += 2 {
		if i > 0 {
			dst = append(dst, ':')
		}
		group, some := int(a[i])<<8|int(a[i+1]), false
		for shift := 12; shift >= 0; shift -= 4 {
			digit := group >> shift & 15
			if some = some || digit > 0 || shift == 0; some {
				dst = append(dst, digits[digit])
			}
		}
	}
	return dst
}

// Less orders addresses by their bytes.
func (a Addr) Less(b Addr) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// Parse reads the texts that netip.ParseAddr accepts: dotted IPv4 without leading zeros, or IPv6
// with an optional zone, which is returned separately.
func Parse(text string) (a Addr, zone string, ok bool) {
	for i := range len(text) {
		switch text[i] {
		case '.':
			a[10], a[11] = 0xff, 0xff
			ok = parse4(text, a[mapped:]) // In a return with a, TinyGo would read a before.
			return a, "", ok
		case ':':
			return parse6(text)
		case '%':
			return a, "", false
		}
	}
	return a, "", false
}

// ParseNetwork reads ADDRESS/BITS, or an address alone, and returns its first and its last address.
// There must be no zone, and no bit set beyond BITS.
func ParseNetwork(text string) (first, last Addr, ok bool) {
	// Split the text at its last slash.
	slash := len(text)
	for slash > 0 && text[slash-1] != '/' {
		slash--
	}
	bits, digits := 128, ""
	if slash > 0 {
		text, digits = text[:slash-1], text[slash:]
	}
	first, zone, ok := Parse(text)
	if !ok || zone != "" {
		return first, first, false
	}
	// Read the bits. IPv4 addresses have their bits after the prefix.
	if slash > 0 {
		bits, ok = readDecimal(digits, 128)
		if !ok {
			return first, first, false
		}
		dotted := true
		for i := range len(text) {
			dotted = dotted && text[i] != ':'
		}
		if dotted {
			bits += 8 * mapped
			if bits > 128 {
				return first, first, false
			}
		}
	}
	// Set all bits beyond, which must not be set in the first address.
	last = first
	for i := range last {
		if free := 8*(i+1) - bits; free > 0 {
			mask := byte(0xff >> max(8-free, 0))
			ok = ok && first[i]&mask == 0
			last[i] |= mask
		}
	}
	return first, last, ok
}

// readDecimal reads a decimal without leading zeros.
func readDecimal(digits string, limit int) (n int, ok bool) {
	if len(digits) == 0 || len(digits) > 3 || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
		n = 10*n + int(digits[i]-'0')
	}
	return n, n <= limit
}

// parse4 reads a dotted IPv4 address into four bytes.
func parse4(text string, into []byte) bool {
	for field := range into {
		end := 0
		for end < len(text) && text[end] != '.' {
			end++
		}
		n, ok := readDecimal(text[:end], 255)
		if last := field == len(into)-1; !ok || last != (end == len(text)) {
			return false
		}
		into[field] = byte(n)
		text = text[min(end+1, len(text)):]
	}
	return true
}

// parse6 reads an IPv6 address.
func parse6(text string) (a Addr, zone string, ok bool) {
	// Cut the zone.
	for i := range len(text) {
		if text[i] == '%' {
			text, zone = text[:i], text[i+1:]
			if zone == "" {
				return a, "", false
			}
			break
		}
	}
	// Read the groups. gap is where a double colon leaves out zeros.
	filled, gap := 0, -1
	if len(text) >= 2 && text[:2] == "::" {
		gap, text = 0, text[2:]
	}
	for text != "" && filled < len(a) {
		group, n := hexGroup(text)
		if n > 4 {
			return a, "", false
		}
		if n < len(text) && text[n] == '.' {
			if gap < 0 && filled != mapped || filled+4 > len(a) || !parse4(text, a[filled:filled+4]) {
				return a, "", false
			}
			filled, text = filled+4, ""
			break
		}
		if n == 0 {
			return a, "", false
		}
		a[filled], a[filled+1] = byte(group>>8), byte(group)
		filled += 2
		text = text[n:]
		if text == "" {
			break
		}
		if text[0] != ':' || len(text) == 1 {
			return a, "", false
		}
		text = text[1:]
		if text[0] == ':' {
			if gap >= 0 {
				return a, "", false
			}
			gap, text = filled, text[1:]
		}
	}
	// Fill the gap with zeros.
	if text != "" || (gap >= 0) == (filled == len(a)) {
		return a, "", false
	}
	if gap >= 0 {
		moved := copy(a[len(a)-(filled-gap):], a[gap:filled])
		clear(a[gap : len(a)-moved])
	}
	return a, zone, true
}

// hexGroup reads the hexadecimal digits at the start of a text, five at most, and returns how many
// there are.
func hexGroup(s string) (value, n int) {
	for n < min(len(s), 5) {
		digit, ok := text.HexDigit(s[n])
		if !ok {
			break
		}
		value = value<<4 | int(digit)
		n++
	}
	return value, n
}
