package spelling

import (
	"unsafe"

	"github.com/weir-proxy/weir/shared/ipaddr"
)

// AppendHost appends a host in lower case, without user name, port, and the dot that ends a fully
// qualified name: servers treat such a name as the same host, so otherwise a client could avoid a
// policy by adding the dot. An IPv6 address has one spelling, that is ipaddr.Addr.AppendIPv6 in
// brackets.
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
		if addr, ok := Address(host); ok {
			return pushByte(addr.AppendIPv6(pushByte(dst, '[')), ']')
		}
	}
	for _, ch := range host {
		if ch >= 'A' && ch <= 'Z' {
			ch += 'a' - 'A'
		}
		dst = pushByte(dst, ch)
	}
	return dst
}

// Address reads an address with or without port and brackets. Zones are dropped and IPv4-mapped
// addresses are IPv4, so that a host is one client in every notation.
func Address(b []byte) (ipaddr.Addr, bool) {
	if len(b) == 0 || len(b) > 128 {
		return ipaddr.Addr{}, false
	}
	colons, last := 0, 0
	for i, ch := range b {
		if ch == ':' {
			colons, last = colons+1, i
		}
	}
	switch {
	case b[0] == '[':
		end := len(b) - 1
		for end > 0 && b[end] != ']' {
			end--
		}
		b = b[1:max(end, 1)]
	case colons == 1:
		b = b[:last]
	}
	if len(b) == 0 {
		return ipaddr.Addr{}, false
	}
	addr, _, ok := ipaddr.Parse(unsafe.String(&b[0], len(b)))
	return addr, ok
}
