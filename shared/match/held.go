package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// authorization is the header whose values are credentials.
const authorization = "authorization"

// maxHeld is how many different values of a place count for one request. Requests with more are
// refused where the place identifies, whatever the policy set says of several.
const maxHeld = 8

// maxElements is how many elements the list of a claim may have; a longer one identifies no caller.
const maxElements = 256

// held is what the request at hand holds at a place: its values, each once, in one spelling.
type held struct {
	// request numbers the request that was read; what was read of another one does not count.
	request uint32
	// from and to are where the values stand.
	from, to uint32
	// isList: the values are one, a claim that is a list.
	isList bool
}

func (h *held) len() int { return int(h.to - h.from) }

// compared is the end of the values that are compared with each other. Those beyond are refused.
func (h *held) compared() uint32 {
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

// hold returns what the request holds at a place, and reads it if no policy has asked before.
func (e *encoder) hold(s source, a *Attributes) *held {
	h := &e.held[s.slot]
	if h.request != e.request {
		*h = held{request: e.request, from: uint32(len(e.values)), to: uint32(len(e.values))}
		e.read(s, a, h)
	}
	return h
}

// read reads the values of a place. An empty value counts as absent: it identifies no caller.
//
//go:noinline
func (e *encoder) read(s source, a *Attributes, h *held) {
	name := e.ix.Text(s.name)
	switch s.kind {
	case policy.SourceClientIP:
		e.keep(h, a.ClientIP)
	case policy.SourceHeader:
		e.readHeader(h, name, a.Headers)
	case policy.SourceCookie:
		e.readCookies(h, name, a.Headers)
	case policy.SourceQuery:
		e.readQuery(h, name, a.Query)
	case policy.SourceJWT:
		e.readClaim(h, e.ask(s.kind, name, a))
	default:
		e.keep(h, e.ask(s.kind, name, a))
	}
	if s.kind == policy.SourceJWT || !h.isList && e.ix.reading.IfSeveral == policy.SeveralJoined {
		e.sort(h)
	}
}

// keep adds a value, if it is none of those before.
func (e *encoder) keep(h *held, one []byte) {
	if len(one) == 0 {
		return
	}
	for i := h.from; i < h.compared(); i++ {
		if text.Equal(e.values[i].text, one) {
			return
		}
	}
	e.values = append(e.values, value{text: one})
	h.to++
}

// sort orders values by their bytes, so that those of a set are one identity in any order.
func (e *encoder) sort(h *held) {
	all := e.values[h.from:h.compared()]
	for i := range all {
		for at := i; at > 0 && string(all[at].text) < string(all[at-1].text); at-- {
			all[at], all[at-1] = all[at-1], all[at]
		}
	}
}

// readHeader reads the values of a header. Servers and proxies join lines with commas: a list of
// equal elements is one value, and credentials that are single tokens come apart.
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
			e.keep(h, single(sent))
		}
	}
}

// readDescriptor reads the values of the entries of a descriptor that have one key, which a proxy
// says: all of them, in their order.
func (e *encoder) readDescriptor(h *held, name []byte, headers []Header) {
	h.isList = true
	for i := range headers {
		if text.Equal(headers[i].Name, name) && len(headers[i].Value) > 0 {
			e.values = append(e.values, value{text: headers[i].Value})
			h.to++
		}
	}
}

// single is the element of a list whose elements are all equal, or the list itself.
func single(list []byte) []byte {
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
	whole := e.spell(sent, spelling.AppendCredentials)
	if !spelling.IsToken(whole) {
		e.keep(h, whole)
		return
	}
	for rest := sent; len(rest) > 0; {
		var one []byte
		one, rest = text.Cut(rest, ',')
		e.keep(h, e.spell(one, spelling.AppendCredentials))
	}
}

// readCookies reads the values of a cookie. Some servers take a blank before another pair for the
// end of a value.
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
			e.keep(h, e.spell(own, spelling.AppendCookie))
		}
		pair = next
	}
}

// readQuery reads the values of a query parameter. Names and values are compared as they decode.
func (e *encoder) readQuery(h *held, name, query []byte) {
	for len(query) > 0 && h.len() <= maxHeld {
		var pair []byte
		pair, query = text.Cut(query, '&')
		key, sent := text.Cut(pair, '=')
		from := len(e.text)
		isOurs := text.Equal(e.spell(key, spelling.AppendQuery), name)
		if e.text = e.text[:from]; isOurs {
			e.keep(h, e.spell(sent, spelling.AppendQuery))
		}
	}
}

// readClaim reads a claim. An object identifies no caller: its fields come in another order each
// time. Neither does a list that is too long to be put in order for each request.
func (e *encoder) readClaim(h *held, claim []byte) {
	switch spelling.KindOf(claim) {
	case spelling.ObjectList:
		e.Objects++
	case spelling.NoList:
		e.keep(h, e.spell(claim, spelling.AppendClaim))
	case spelling.ValueList:
		h.isList = true
		for i, at := 0, 0; i == 0 || at > 0; i++ {
			var element []byte
			if element, at = spelling.Element(claim, i, at); at > 0 && i == maxElements {
				h.to = h.from
				e.Objects++
				return
			}
			e.keep(h, e.spell(element, spelling.AppendClaim))
		}
	}
}

// spell gives a value its spelling, in memory that is used again with the next request.
func (e *encoder) spell(sent []byte, appendTo func(dst, sent []byte) []byte) []byte {
	from := len(e.text)
	e.text = appendTo(e.text, sent)
	return e.text[from:len(e.text):len(e.text)]
}
