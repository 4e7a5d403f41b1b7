package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// meets reports whether a request meets the conditions of a policy whose host and path match, but
// for that on the tier.
func (ix *Index) meets(p *Policy, a *Attributes) bool {
	return ix.methodMatches(p, a.Method) && ix.headersMatch(p, a.Headers) && ix.clientMatches(p, a)
}

func (ix *Index) methodMatches(p *Policy, method []byte) bool {
	if p.methods.len() == 0 {
		return true
	}
	for _, ref := range ix.methods[p.methods.from:p.methods.to] {
		if text.Equal(ix.Text(ref), method) {
			return true
		}
	}
	return false
}

func (ix *Index) headersMatch(p *Policy, headers []Header) bool {
	for _, m := range ix.headers[p.headers.from:p.headers.to] {
		if !ix.headerMatches(m, headers) {
			return false
		}
	}
	return true
}

// headerMatches reports whether one condition holds. A repeated header meets it if any of its
// values does. An empty value counts as absent, as it does in a partition. Otherwise a policy for
// callers with a key and one for those without would both miss it.
func (ix *Index) headerMatches(m headerMatch, headers []Header) bool {
	name, want := ix.Text(m.name), ix.Text(m.value)
	for i := range headers {
		if !text.Equal(headers[i].Name, name) {
			continue
		}
		value := headers[i].Value
		switch m.op {
		case policy.HeaderAbsent:
			if len(value) > 0 {
				return false
			}
		case policy.HeaderPresent:
			if len(value) > 0 {
				return true
			}
		case policy.HeaderEquals:
			if text.Equal(value, want) {
				return true
			}
		case policy.HeaderPrefix:
			if len(value) >= len(want) && text.Equal(value[:len(want)], want) {
				return true
			}
		}
	}
	return m.op == policy.HeaderAbsent
}

// clientMatches reports whether the client's address is one that the policy is for.
func (ix *Index) clientMatches(p *Policy, a *Attributes) bool {
	ranges := ix.clients[p.clients.from:p.clients.to]
	return len(ranges) == 0 || len(a.ClientIP) > 0 && policy.Contains(ranges, a.Address)
}
