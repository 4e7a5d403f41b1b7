// Package classify turns Envoy's data about a request into the attributes that policies match: the
// normalised path, the host without port, and the client's address as far as it can be trusted.
package classify

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// Classifier holds the buffers of one VM, reused from request to request.
type Classifier struct {
	headers            []match.Header
	method, path, host []byte
	addr               [16]byte
	// Surprising counts the requests for which Envoy does not append the peer's address to
	// x-forwarded-for, although the rules say so.
	Surprising uint64
}

// Rules define how to find the client's address, and how to read paths.
type Rules struct {
	// TrustedHops: 0 takes the peer, N the N-th x-forwarded-for entry from the right, after Envoy's
	// own.
	TrustedHops int
	// IPv6Prefix is the number of bits of an IPv6 address that identify a client.
	IPv6Prefix int
	// NotAppended means that the last x-forwarded-for entry is not Envoy's own.
	NotAppended bool
	// Routing is how paths are read.
	Routing spelling.Routing
}

// RulesOf returns the rules of a policy set.
func RulesOf(ix *match.Index) Rules {
	reading := ix.Reading()
	return Rules{
		TrustedHops: ix.TrustedHops(), IPv6Prefix: ix.IPv6Prefix(), NotAppended: reading.NotAppended,
		Routing: reading.Routing,
	}
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
	return c.attributesOf(source, rules), true
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
	return c.attributesOf(source, rules)
}

func (c *Classifier) attributesOf(source []byte, rules Rules) match.Attributes {
	a := match.Attributes{Headers: c.headers}
	for _, h := range c.headers {
		if len(h.Name) == 0 || h.Name[0] != ':' {
			continue
		}
		switch {
		case h.Is(":method"):
			c.method = spelling.AppendMethod(c.method[:0], h.Value)
			a.Method = c.method
		case h.Is(":path"):
			c.path, a.Vague = spelling.AppendPath(c.path[:0], h.Value, rules.Routing)
			a.Path, a.Query = c.path, queryOf(h.Value)
		case h.Is(":authority"):
			c.host = spelling.AppendHost(c.host[:0], h.Value)
			a.Host = c.host
		}
	}
	if len(source) > 0 {
		a.ClientIP, a.Address = c.clientAddress(source, rules)
	}
	return a
}

// queryOf returns the part of a path between the question mark and the fragment.
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

// clientAddress finds the client's address. Entries that a client could have written itself never
// count: entries are taken from the right, and if an entry is missing or invalid the address is the
// peer's.
func (c *Classifier) clientAddress(source []byte, rules Rules) (identity []byte, address ipaddr.Addr) {
	peer, ok := spelling.ReadAddress(source)
	if !ok {
		return nil, address
	}
	if !rules.NotAppended && !c.isAppended(peer) {
		c.Surprising++
	}
	addr := peer
	if rules.TrustedHops > 0 {
		if forwarded, found := c.forwardedEntry(peer, rules); found {
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

// isAppended reports whether a request looks like requests of an Envoy that appends the peer's
// address to x-forwarded-for. The filter cannot read use_remote_address, which makes Envoy append.
// But then Envoy also marks the request as internal, or sets the external address.
func (c *Classifier) isAppended(peer ipaddr.Addr) bool {
	marked, own := false, false
	for i := range c.headers {
		switch h := c.headers[i]; {
		case h.Is("x-forwarded-for"):
			entry, _, _ := lastEntry(h.Value)
			own = isOwn(entry, peer)
		case h.Is("x-envoy-external-address"), h.Is("x-envoy-internal"):
			marked = true
		}
	}
	return own && marked
}

// isOwn reports whether the last entry of x-forwarded-for can be Envoy's own: it names the peer, or
// for a peer on the loopback an address of Envoy's machine.
func isOwn(entry []byte, peer ipaddr.Addr) bool {
	addr, ok := spelling.ReadAddress(entry)
	return ok && addr == peer || peer.IsLoopback()
}

// forwardedEntry returns the x-forwarded-for entry from the right that TrustedHops selects. If
// Envoy appends an entry of its own, that entry does not count. A last entry that cannot be Envoy's
// own counts, because a client may have written the entry before it.
func (c *Classifier) forwardedEntry(peer ipaddr.Addr, rules Rules) (ipaddr.Addr, bool) {
	left, own := rules.TrustedHops, !rules.NotAppended
	for i := len(c.headers) - 1; i >= 0; i-- {
		h := c.headers[i]
		if !h.Is("x-forwarded-for") {
			continue
		}
		for rest, more := h.Value, true; more; own = false {
			var entry []byte
			entry, rest, more = lastEntry(rest)
			if own && isOwn(entry, peer) {
				continue
			}
			if left--; left == 0 {
				return spelling.ReadAddress(entry)
			}
		}
	}
	return ipaddr.Addr{}, false
}

// lastEntry splits a list at its last comma. more is false if there is no comma.
func lastEntry(list []byte) (entry, before []byte, more bool) {
	comma := len(list) - 1
	for comma >= 0 && list[comma] != ',' {
		comma--
	}
	return text.Trim(list[comma+1:]), list[:max(comma, 0)], comma >= 0
}
