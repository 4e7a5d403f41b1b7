package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// meetsConditions reports whether a request meets the conditions of a policy whose host and path
// match, except the condition on the tier.
func (e *encoder) meetsConditions(p *Policy, a *Attributes) bool {
	return e.ix.methodMatches(p, a.Method) && e.headersMatch(p, a) && e.ix.clientMatches(p, a)
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

func (e *encoder) headersMatch(p *Policy, a *Attributes) bool {
	conditions := e.ix.headers[p.headers.from:p.headers.to]
	for i := range conditions {
		if !e.headerMatches(&conditions[i], a) {
			return false
		}
	}
	return true
}

// headerMatches reports whether one condition holds. A header with several values meets it if any
// of its values does. An empty value counts as absent, as it does in a partition. Otherwise neither
// a policy for callers with a key nor a policy for callers without a key would apply to it.
func (e *encoder) headerMatches(m *headerMatch, a *Attributes) bool {
	h, want := e.valuesAt(m.name, a), e.ix.Text(m.value)
	switch m.op {
	case policy.HeaderAbsent:
		return h.len() == 0
	case policy.HeaderPresent:
		return h.len() > 0
	}
	for i := h.from; i < h.to; i++ {
		value := e.values[i].text
		if m.op == policy.HeaderPrefix && len(value) > len(want) {
			value = value[:len(want)]
		}
		if text.Equal(value, want) {
			return true
		}
	}
	return false
}

// clientMatches reports whether the policy is for the client's address.
func (ix *Index) clientMatches(p *Policy, a *Attributes) bool {
	ranges := ix.clients[p.clients.from:p.clients.to]
	return len(ranges) == 0 || len(a.ClientIP) > 0 && policy.Contains(ranges, a.Address)
}
