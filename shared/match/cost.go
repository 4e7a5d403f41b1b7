package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/wire"
)

// cost is what a request costs under a policy. A cost header that says different things is invalid:
// no rule says which one counts.
func (e *encoder) cost(p *Policy, a *Attributes) (int64, Verdict) {
	if p.Cost.Source.Len == 0 {
		return p.Cost.Fixed, Limited
	}
	if p.commit > 0 {
		return e.reserved(p, a), Limited
	}
	value := findHeader(a.Headers, e.ix.Text(p.Cost.Source))
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
	return max(n, e.ix.commits[p.commit-1].Least)
}

// budget is what one source says, of a header given several times the largest; 0 if nothing.
func (e *encoder) budget(p *Policy, source wire.Ref, a *Attributes) (n int64) {
	kind, name := p.Cost.Kind, e.ix.Text(source)
	if kind != policy.SourceHeader {
		return policy.ParseReserved(kind, e.ask(kind, name, a), p.Cost.Max)
	}
	for i := range a.Headers {
		if spelling.IsHeader(a.Headers[i].Name, name) {
			n = max(n, policy.ParseReserved(kind, a.Headers[i].Value, p.Cost.Max))
		}
	}
	return n
}
