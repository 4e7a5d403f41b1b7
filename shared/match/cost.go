package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/wire"
)

// costOf returns the cost of a request under a policy. A cost header with several different values
// is invalid, because no rule says which value counts.
func (e *encoder) costOf(p *Policy, a *Attributes) (int64, Verdict) {
	if p.Cost.Source.Len == 0 {
		return p.Cost.Fixed, Limited
	}
	if p.commit > 0 {
		return e.reservedCost(p, a), Limited
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

// reservedCost returns the tokens that a request takes before its cost is known: the largest of its
// budgets, so that two budgets never reserve less than one. A request that takes no token would
// always pass, and never be settled.
func (e *encoder) reservedCost(p *Policy, a *Attributes) int64 {
	n := e.budgetOf(p, p.Cost.Source, a)
	for _, also := range e.ix.also[p.commit-1] {
		if also.Len > 0 {
			n = max(n, e.budgetOf(p, also, a))
		}
	}
	if n == 0 {
		return p.Cost.Invalid
	}
	return max(n, e.ix.commits[p.commit-1].Least)
}

// budgetOf returns the budget in one source, the largest if a header occurs several times; 0 if
// there is none.
func (e *encoder) budgetOf(p *Policy, source wire.Ref, a *Attributes) (n int64) {
	kind, name := p.Cost.Kind, e.ix.Text(source)
	if kind != policy.SourceHeader {
		return policy.ParseReserved(kind, e.askEnvoy(kind, name, a), p.Cost.Max)
	}
	for i := range a.Headers {
		if spelling.IsHeader(a.Headers[i].Name, name) {
			n = max(n, policy.ParseReserved(kind, a.Headers[i].Value, p.Cost.Max))
		}
	}
	return n
}
