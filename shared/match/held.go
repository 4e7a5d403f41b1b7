package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// authorization is the header whose values are credentials.
const authorization = "authorization"

// maxHeld is the largest number of different values of a place in one request. A request with more
// is refused where the place identifies it, even if the policy set allows several values.
const maxHeld = 8

// maxElements is the largest number of elements in the list of a claim. A longer list identifies no
// caller.
const maxElements = 256

// held has the values of the current request at a place. Each value is there once, in one spelling.
type held struct {
	// request is the number of the request that was read; values of an earlier request are ignored.
	request uint32
	// from and to are the bounds of the values in encoder.values.
	from, to uint32
	// isList means that the values are one value: a claim that is a list.
	isList bool
}

func (h *held) len() int { return int(h.to - h.from) }

// comparedEnd returns the end of the values that are compared with each other. A request with more
// values is refused.
func (h *held) comparedEnd() uint32 {
	if h.isList {
		return h.to
	}
	return min(h.to, h.from+2*maxHeld)
}

// value is a value of a request, with its hash once a key has needed it.
type value struct {
	text   []byte
	digest keyhash.Key
	hashed bool
}

// valuesAt returns the request's values at a place, and reads them if no policy has asked before.
func (e *encoder) valuesAt(s source, a *Attributes) *held {
	h := &e.held[s.slot]
	if h.request != e.request {
		*h = held{request: e.request, from: uint32(len(e.values)), to: uint32(len(e.values))}
		e.readPlace(s, a, h)
	}
	return h
}

// readPlace reads the values of a place. An empty value counts as absent: it identifies no caller.
//
//go:noinline
func (e *encoder) readPlace(s source, a *Attributes, h *held) {
	name := e.ix.Text(s.name)
	switch s.kind {
	case policy.SourceClientIP:
		e.keepValue(h, a.ClientIP)
	case policy.SourceHeader:
		e.readHeader(h, name, a.Headers)
	case policy.SourceCookie:
		e.readCookies(h, name, a.Headers)
	case policy.SourceQuery:
		e.readQuery(h, name, a.Query)
	case policy.SourceJWT:
		e.readClaim(h, e.askEnvoy(s.kind, name, a))
	default:
		e.keepValue(h, e.askEnvoy(s.kind, name, a))
	}
	if s.kind == policy.SourceJWT || !h.isList && e.ix.reading.IfSeveral == policy.SeveralJoined {
		e.sortValues(h)
	}
}

// keepValue adds a value unless it is there already.
func (e *encoder) keepValue(h *held, one []byte) {
	if len(one) == 0 {
		return
	}
	for i := h.from; i < h.comparedEnd(); i++ {
		if text.Equal(e.values[i].text, one) {
			return
		}
	}
	e.values = append(e.values, value{text: one})
	h.to++
}

// sortValues sorts values by their bytes, so that a set of values is the same identity in any
// order.
func (e *encoder) sortValues(h *held) {
	all := e.values[h.from:h.comparedEnd()]
	for i := range all {
		for at := i; at > 0 && string(all[at].text) < string(all[at-1].text); at-- {
			all[at], all[at-1] = all[at-1], all[at]
		}
	}
}

// readHeader reads the values of a header. Servers and proxies join lines with commas. So a list of
// equal elements is one value, and a list of credentials without spaces is split.
func (e *encoder) readHeader(h *held, name []byte, headers []Header) {
	if text.HasPrefix(name, policy.DescriptorName) {
		e.readDescriptor(h, name, headers)
		return
	}
	credentials := text.Is(name, authorization)
	for i := range headers {
		if !spelling.IsHeader(headers[i].Name, name) {
			continue
		}
		if sent := headers[i].Value; credentials {
			e.readCredentials(h, sent)
		} else {
			e.keepValue(h, singleElement(sent))
		}
	}
}

// readDescriptor reads all values of the descriptor entries that have one key, in their order. A
// proxy sends them.
func (e *encoder) readDescriptor(h *held, name []byte, headers []Header) {
	h.isList = true
	for i := range headers {
		if text.Equal(headers[i].Name, name) && len(headers[i].Value) > 0 {
			e.values = append(e.values, value{text: headers[i].Value})
			h.to++
		}
	}
}

// singleElement returns the element of a list whose elements are all equal, or the list itself.
func singleElement(list []byte) []byte {
	first, rest := text.Cut(list, ',')
	if first = text.Trim(first); len(first) == 0 || len(rest) == 0 {
		return text.Trim(list)
	}
	for len(rest) > 0 {
		var next []byte
		if next, rest = text.Cut(rest, ','); !text.Equal(text.Trim(next), first) {
			return text.Trim(list)
		}
	}
	return first
}

func (e *encoder) readCredentials(h *held, sent []byte) {
	whole := e.spellValue(sent, spelling.AppendCredentials)
	if !spelling.IsToken(whole) {
		e.keepValue(h, whole)
		return
	}
	for rest := sent; len(rest) > 0; {
		var one []byte
		one, rest = text.Cut(rest, ',')
		e.keepValue(h, e.spellValue(one, spelling.AppendCredentials))
	}
}

// readCookies reads the values of a cookie. For some servers a blank before another pair ends a
// value.
func (e *encoder) readCookies(h *held, name []byte, headers []Header) {
	for i := range headers {
		if !headers[i].Is("cookie") {
			continue
		}
		for rest := headers[i].Value; len(rest) > 0 && h.len() <= maxHeld; {
			var pair []byte
			pair, rest = text.Cut(rest, ';')
			e.readPair(h, name, pair)
		}
	}
}

func (e *encoder) readPair(h *held, name, pair []byte) {
	for len(pair) > 0 {
		key, sent := text.Cut(pair, '=')
		own, next := spelling.CutCookie(sent)
		if text.Equal(text.Trim(key), name) {
			e.keepValue(h, e.spellValue(own, spelling.AppendCookie))
		}
		pair = next
	}
}

// readQuery reads the values of a query parameter. Names and values are compared after decoding.
func (e *encoder) readQuery(h *held, name, query []byte) {
	for len(query) > 0 && h.len() <= maxHeld {
		var pair []byte
		pair, query = text.Cut(query, '&')
		key, sent := text.Cut(pair, '=')
		from := len(e.text)
		isOurs := text.Equal(e.spellValue(key, spelling.AppendQuery), name)
		if e.text = e.text[:from]; isOurs {
			e.keepValue(h, e.spellValue(sent, spelling.AppendQuery))
		}
	}
}

// readClaim reads a claim. An object identifies no caller, because its fields have another order
// each time. Nor does a list that is too long to sort for each request.
func (e *encoder) readClaim(h *held, claim []byte) {
	switch spelling.KindOf(claim) {
	case spelling.ObjectList:
		e.Objects++
	case spelling.NoList:
		e.keepValue(h, e.spellValue(claim, spelling.AppendClaim))
	case spelling.ValueList:
		h.isList = true
		for i, at := 0, 0; i == 0 || at > 0; i++ {
			var element []byte
			if element, at = spelling.Element(claim, i, at); at > 0 && i == maxElements {
				h.to = h.from
				e.Objects++
				return
			}
			e.keepValue(h, e.spellValue(element, spelling.AppendClaim))
		}
	}
}

// spellValue spells a value, in memory that the next request reuses.
func (e *encoder) spellValue(sent []byte, appendTo func(dst, sent []byte) []byte) []byte {
	from := len(e.text)
	e.text = appendTo(e.text, sent)
	return e.text[from:len(e.text):len(e.text)]
}
