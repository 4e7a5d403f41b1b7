package spelling

import (
	"unsafe"

	"github.com/weir-proxy/weir/shared/ipaddr"
)

// AppendHost appends a host in lower case, without user name, port, and the dot at the end of a
// fully qualified name. Servers treat the name with the dot as the same host, so otherwise a client
// could avoid a policy by adding the dot. An IPv6 address always has the spelling of
// ipaddr.Addr.AppendIPv6, in brackets.
func AppendHost(dst, host []byte) []byte {
	end := len(host)
	for i := len(host) - 1; i >= 0 && host[i] != ']'; i-- {
		switch host[i] {
		case ':':
			end = i
		case '@':
			host, end, i = host[i+1:], end-i-1, 0
		}
	}
	if end > 1 && host[end-1] == '.' {
		end--
	}
	if host = host[:end]; end > 0 && host[0] == '[' {
		if addr, ok := ReadAddress(host); ok {
			return pushByte(addr.AppendIPv6(pushByte(dst, '[')), ']')
		}
	}
	from := len(dst)
	dst = append(dst, host...)
	flipLetters(dst[from:], 'A')
	return dst
}

// ReadAddress reads an IP address, with or without port and brackets. It drops the zone, and
// returns an IPv4-mapped address as IPv4, so all spellings of an address are the same client.
func ReadAddress(b []byte) (ipaddr.Addr, bool) {
	if len(b) == 0 || len(b) > 128 {
		return ipaddr.Addr{}, false
	}
	// Cut the port off. An address with several colons is IPv6 without a port.
	colons, last := 0, 0
	for i, ch := range b {
		if ch == ':' {
			colons, last = colons+1, i
		}
	}
	switch {
	case b[0] == '[': // Like [2001:db8::1]:80; a missing bracket gives an empty address.
		end := len(b) - 1
		for end > 0 && b[end] != ']' {
			end--
		}
		b = b[1:max(end, 1)]
	case colons == 1: // Like 192.0.2.1:80.
		b = b[:last]
	}
	if len(b) == 0 {
		return ipaddr.Addr{}, false
	}
	addr, _, ok := ipaddr.Parse(unsafe.String(&b[0], len(b)))
	return addr, ok
}
