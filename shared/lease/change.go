package lease

import "github.com/weir-proxy/weir/shared/quota"

// At brings the ledger to now and to the ask's figures. Time never runs backwards in it. A change
// of figures keeps what was used, and a fraction of a used token counts as a whole one. What the
// new burst has no room for is kept apart.
func (l Ledger) At(now quota.Instant, ask Ask) Ledger {
	l = l.bring(now, ask)
	p := l.Params
	if !ask.Optimistic && !ask.Owing && !ask.own() { // Others may have used more than this caller's burst.
		if over := l.Debt - max(p.Burst*p.Den, units(l.out(), p.Den)); over > 0 {
			l.Debt -= over
			l.Over, l.Gone = min(l.Over+ceilDiv(over, p.Den), maxUnits), 0
		}
	}
	l.Debt = max(units(l.out(), p.Den), l.Debt)
	return l
}

// bring is At without the cap, because reports of an optimistic bucket can exceed what it holds.
func (l Ledger) bring(now quota.Instant, ask Ask) Ledger {
	now = max(now, l.Last)
	old := l.Params
	l.Version = max(l.Version, ask.Version)
	if old.Den != 0 && old != ask.Params && !ask.own() {
		return l.changed(now, ask).changedFrom(old, ask)
	}
	l.Pairs = append(make([]Pair, 0, MaxPairs+2), l.Pairs...)
	switch {
	case old.Den == 0:
		l.Params = ask.Params
		l.advance(now)
	case old == ask.Params && !ask.own():
		l.advance(now)
	default:
		l.countOver(ask.Most.Burst)
		if old != ask.Params && ask.Most.SlowerThan(old) {
			l.convert(ask.Most)
		}
		l.advance(now)
		l, _ = l.restated(ask.Params)
	}
	return l.changedFrom(old, ask)
}

// changed brings the ledger to now and to the ask's figures, which are others than its own, as
// quota.Params.Convert does.
func (l Ledger) changed(now quota.Instant, ask Ask) Ledger {
	then, late := l, l
	then.Pairs = append(make([]Pair, 0, MaxPairs+2), l.Pairs...)
	late.Pairs = append(make([]Pair, 0, MaxPairs+2), l.Pairs...)
	then.carry(ask)
	then.advance(now)
	late.advance(now)
	late.carry(ask)
	if late.Debt < then.Debt || late.Debt == then.Debt && late.Over < then.Over {
		return late
	}
	return then
}

// carry has the ledger count in the ask's figures. What it owes beyond its burst, by reports of
// nodes or by costs that were known later, is owed on: of reports no more than nodes can exceed the
// new burst by.
func (l *Ledger) carry(ask Ask) {
	next, beyond := ask.Params, int64(0)
	switch {
	case ask.Optimistic:
		beyond = min(l.Params.Beyond(l.state()), Overshoot(next, ask.Nodes))
	case ask.Owing:
		beyond = l.Params.Beyond(l.state())
	}
	s := l.Params.Carry(l.state(), next, beyond)
	l.Params, l.Debt, l.Over, l.Gone = next, s.Debt, s.Over, s.Gone
	l.trim(next.Burst + beyond)
}

// trim forgets leases, those that end first, until no more than n tokens are leased: what a bucket
// has no room for delays it no longer than its whole burst does.
func (l *Ledger) trim(n int64) {
	over := l.out() - n
	for over > 0 {
		first := &l.Pairs[0]
		less := min(over, first.Tokens)
		first.Tokens -= less
		over -= less
		if first.Tokens == 0 {
			l.Pairs = l.Pairs[1:]
		}
	}
}

// state is the ledger without its leases.
func (l *Ledger) state() quota.State {
	return quota.State{Debt: l.Debt, Last: l.Last, Over: l.Over, Gone: l.Gone}
}

// countOver counts again what was kept apart, as far as a burst has room for it: where callers
// bring figures of their own, the ledger does not have the largest ones.
func (l *Ledger) countOver(burst int64) {
	if n := min(l.Over, min(burst, maxUnits/l.Params.Den)-l.Params.TokensIn(l.Debt)); n > 0 {
		l.Debt += units(n, l.Params.Den)
		if l.Over -= n; l.Over == 0 {
			l.Gone = 0
		}
	}
}

// convert has the ledger count in other units.
func (l *Ledger) convert(next quota.Params) {
	l.Debt = units(l.Params.TokensIn(l.Debt), next.Den)
	l.Params = next
}

// drainOver brings to now what is kept apart: it goes after the debt, which leases hold up.
func (l *Ledger) drainOver(now quota.Instant) {
	s := l.Params.DrainOver(l.state(), now, l.Ready(l.Params.Burst))
	l.Over, l.Gone = s.Over, s.Gone
}
