// Package classify turns what Envoy knows of a request into the attributes that policies match: the
// normalised path, the host without port, and the client's address as far as it can be trusted.
package classify

import (
	"encoding/binary"
	"unsafe"

	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// Classifier holds the buffers of one VM, reused from request to request.
type Classifier struct {
	headers    []match.Header
	path, host []byte
	addr       [16]byte
}

// Rules say how to find the client's address.
type Rules struct {
	// TrustedHops: 0 takes the peer, N the N-th x-forwarded-for entry from the right, after Envoy's
	// own.
	TrustedHops int
	// IPv6Prefix is how many bits of an IPv6 address identify a client.
	IPv6Prefix int
}

// Classify reads the request's headers, in the encoding of the proxy-wasm ABI, and Envoy's
// source.address (empty if no policy needs the client's address). The attributes are valid until
// the next Classify, and while pairs is. It reports false for bytes that are not a header map.
func (c *Classifier) Classify(pairs, source []byte, rules Rules) (match.Attributes, bool) {
	var ok bool
	c.headers, ok = decodePairs(c.headers[:0], pairs)
	if !ok {
		return match.Attributes{}, false
	}
	return c.attributes(source, rules), true
}

// Decode reads a header map in the encoding of the proxy-wasm ABI. The headers are valid until the
// next Classify or Decode, and while pairs is. It reports false for bytes that are not a header
// map.
func (c *Classifier) Decode(pairs []byte) (headers []match.Header, ok bool) {
	c.headers, ok = decodePairs(c.headers[:0], pairs)
	return c.headers, ok
}

// Of is Classify for headers that are decoded already, including the pseudo-headers.
func (c *Classifier) Of(headers []match.Header, source []byte, rules Rules) match.Attributes {
	c.headers = append(c.headers[:0], headers...)
	return c.attributes(source, rules)
}

func (c *Classifier) attributes(source []byte, rules Rules) match.Attributes {
	a := match.Attributes{Headers: c.headers}
	for _, h := range c.headers {
		if len(h.Name) == 0 || h.Name[0] != ':' {
			continue
		}
		switch {
		case h.Is(":method"):
			a.Method = h.Value
		case h.Is(":path"):
			c.path = NormalisePath(c.path[:0], h.Value)
			a.Path, a.Query = c.path, queryOf(h.Value)
		case h.Is(":authority"):
			c.host = normaliseHost(c.host[:0], h.Value)
			a.Host = c.host
		}
	}
	if len(source) > 0 {
		a.ClientIP, a.Address = c.client(source, rules)
	}
	return a
}

// queryOf is the part of a path between the question mark and the fragment.
func queryOf(path []byte) []byte {
	from := len(path)
	for i, ch := range path {
		if ch == '#' {
			return path[min(from, i):i]
		}
		if ch == '?' && from == len(path) {
			from = i + 1
		}
	}
	return path[from:]
}

// decodePairs reads the ABI's header map: a count, the lengths of each name and value, then the
// bytes, each ended by NUL.
func decodePairs(dst []match.Header, b []byte) ([]match.Header, bool) {
	if len(b) < 4 {
		return dst, false
	}
	n := binary.LittleEndian.Uint32(b)
	if 4+8*uint64(n) > uint64(len(b)) {
		return dst, false
	}
	at := 4 + 8*int(n)
	for i := range int(n) {
		name, value := binary.LittleEndian.Uint32(b[4+8*i:]), binary.LittleEndian.Uint32(b[8+8*i:])
		if uint64(at)+uint64(name)+uint64(value)+2 > uint64(len(b)) {
			return dst, false
		}
		end := at + int(name)
		dst = append(dst, match.Header{Name: b[at:end], Value: b[end+1 : end+1+int(value)]})
		at = end + int(value) + 2
	}
	return dst, true
}

// NormalisePath appends a request path in the form that policies match: without query and fragment,
// unreserved characters decoded, other percent-encodings in upper case, stray percent signs
// encoded, slashes merged, dot segments resolved. A path that does not start with a slash, like the
// * of OPTIONS, stays as it is.
func NormalisePath(dst, path []byte) []byte {
	for i, ch := range path {
		if ch == '?' || ch == '#' {
			path = path[:i]
			break
		}
	}
	if len(path) == 0 || path[0] != '/' {
		return append(dst, path...)
	}
	start := len(dst)
	for i := 0; i < len(path); i++ {
		ch := path[i]
		switch {
		case ch == '%':
			decoded, ok := byte(0), false
			if i+2 < len(path) {
				decoded, ok = text.Unhex(path[i+1], path[i+2])
			}
			if !ok {
				decoded = '%' // A stray percent sign must not become an escape with what follows it.
			} else {
				i += 2
			}
			dst = appendEscape(dst, decoded)
			continue
		case ch == '/':
			dst = closeSegment(dst, start)
			if len(dst) > start && dst[len(dst)-1] == '/' {
				continue
			}
		}
		dst = append(dst, ch)
	}
	return closeSegment(dst, start)
}

func appendEscape(dst []byte, ch byte) []byte {
	if policy.Unreserved(ch) {
		return append(dst, ch)
	}
	const digits = "0123456789ABCDEF"
	return append(dst, '%', digits[ch>>4], digits[ch&15])
}

// closeSegment removes a dot segment at the end of dst, and for a double dot also the segment
// before it. The slash stays.
func closeSegment(dst []byte, start int) []byte {
	last := len(dst)
	for last > start && dst[last-1] != '/' {
		last--
	}
	switch segment := dst[last:]; {
	case last == start:
		return dst
	case len(segment) == 1 && segment[0] == '.':
		return dst[:last]
	case len(segment) == 2 && segment[0] == '.' && segment[1] == '.':
		for last--; last > start && dst[last-1] != '/'; last-- {
		}
		return dst[:max(last, start+1)]
	}
	return dst
}

// normaliseHost appends a host in lower case, without port and without the dot that ends a fully
// qualified name: servers treat such a name as the same host, so otherwise a client could avoid a
// policy by adding the dot.
func normaliseHost(dst, host []byte) []byte {
	end := len(host)
	for i := len(host) - 1; i >= 0 && host[i] != ']'; i-- {
		if host[i] == ':' {
			end = i
		}
	}
	if end > 1 && host[end-1] == '.' {
		end--
	}
	for _, ch := range host[:end] {
		if ch >= 'A' && ch <= 'Z' {
			ch += 'a' - 'A'
		}
		dst = append(dst, ch)
	}
	return dst
}

// client finds the client's address. Entries that a client could have written itself never count:
// entries are taken from the right, and with a missing or invalid one the address is the peer's.
func (c *Classifier) client(source []byte, rules Rules) (identity []byte, address ipaddr.Addr) {
	peer, ok := parseAddr(source)
	if !ok {
		return nil, address
	}
	addr := peer
	if rules.TrustedHops > 0 {
		if forwarded, found := c.forwarded(peer, rules.TrustedHops); found {
			addr = forwarded
		}
	}
	b := addr
	address = addr
	if addr.Is4() {
		return append(c.addr[:0], b[12:]...), address
	}
	for i := range b {
		if bits := rules.IPv6Prefix - 8*i; bits < 8 {
			b[i] &= ^byte(0xff >> max(bits, 0))
		}
	}
	c.addr = b
	return c.addr[:], address
}

// forwarded is the n-th x-forwarded-for entry from the right. Envoy's own entry does not count.
// Envoy appends it only with use_remote_address, which the filter cannot read. But an entry that
// names the peer is Envoy's own or true, and for a peer on the loopback Envoy writes an address of
// its own machine, so there the last entry is taken for Envoy's.
func (c *Classifier) forwarded(peer ipaddr.Addr, n int) (ipaddr.Addr, bool) {
	seen := 0
	for i := len(c.headers) - 1; i >= 0; i-- {
		h := c.headers[i]
		if !h.Is("x-forwarded-for") {
			continue
		}
		for rest := h.Value; ; {
			comma := len(rest) - 1
			for comma >= 0 && rest[comma] != ',' {
				comma--
			}
			addr, ok := parseAddr(text.Trim(rest[comma+1:]))
			if own := seen == 0 && (ok && addr == peer || peer.IsLoopback()); own {
				seen = 1
			} else if seen = max(seen, 1) + 1; seen == n+1 {
				return addr, ok
			}
			if comma < 0 {
				break
			}
			rest = rest[:comma]
		}
	}
	return ipaddr.Addr{}, false
}

// parseAddr reads an address with or without port and brackets. Zones are dropped and IPv4-mapped
// addresses are IPv4, so that a host is one client in every notation.
func parseAddr(b []byte) (ipaddr.Addr, bool) {
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
