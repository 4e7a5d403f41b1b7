package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
	"github.com/weir-proxy/weir/shared/wire"
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

// cost is what a request costs under a policy. A cost header that is given twice is invalid: no
// rule says which one counts.
func (e *encoder) cost(p *Policy, a *Attributes) (int64, Verdict) {
	if p.Cost.Source.Len == 0 {
		return p.Cost.Fixed, Limited
	}
	if p.commit > 0 {
		return e.reserved(p, a), Limited
	}
	value := e.number(policy.SourceHeader, e.ix.Text(p.Cost.Source), a)
	if n, ok := policy.ParseCost(value, p.Cost.Max); ok {
		return n, Limited
	}
	if p.Cost.DenyInvalid {
		return 0, RefusedCost
	}
	return p.Cost.Invalid, Limited
}

// reserved is what a request takes before its cost is known: the largest that it says, so that two
// budgets never reserve less than one. A request that takes nothing would always pass, and never be
// settled.
func (e *encoder) reserved(p *Policy, a *Attributes) int64 {
	n := e.budget(p, p.Cost.Source, a)
	for _, also := range e.ix.also[p.commit-1] {
		if also.Len > 0 {
			n = max(n, e.budget(p, also, a))
		}
	}
	if n == 0 {
		return p.Cost.Invalid
	}
	return n
}

// budget is what one source says, of a header given several times the largest; 0 if nothing.
func (e *encoder) budget(p *Policy, source wire.Ref, a *Attributes) (n int64) {
	kind, name := p.Cost.Kind, e.ix.Text(source)
	if kind != policy.SourceHeader {
		return policy.ParseReserved(kind, e.property(kind, name, a), p.Cost.Max)
	}
	for i := range a.Headers {
		if text.Equal(a.Headers[i].Name, name) {
			n = max(n, policy.ParseReserved(kind, a.Headers[i].Value, p.Cost.Max))
		}
	}
	return n
}
