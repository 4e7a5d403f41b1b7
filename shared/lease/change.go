package lease

import "github.com/weir-proxy/weir/shared/quota"

// At brings the ledger to now and to the ask's figures. Time never runs backwards in it. A change
// of figures keeps the used tokens, and a fraction of a used token counts as a whole token. Used
// tokens that the new burst has no room for are kept apart, in Over.
func (l Ledger) At(now quota.Instant, ask Ask) Ledger {
	l = l.bringTo(now, ask)
	p := l.Params
	if !ask.Optimistic && !ask.Owing && !ask.hasOwnFigures() { // Others may have used more than this caller's burst.
		if over := l.Debt - max(p.Burst*p.Den, toUnits(l.leasedTokens(), p.Den)); over > 0 {
			l.Debt -= over
			l.Over, l.Gone = min(l.Over+ceilDiv(over, p.Den), maxUnits), 0
		}
	}
	l.Debt = max(toUnits(l.leasedTokens(), p.Den), l.Debt)
	return l
}

// bringTo is At without the cap, because reports of an optimistic bucket can exceed its tokens.
func (l Ledger) bringTo(now quota.Instant, ask Ask) Ledger {
	now = max(now, l.Last)
	old := l.Params
	l.Version = max(l.Version, ask.Version)
	if old.Den != 0 && old != ask.Params && !ask.hasOwnFigures() {
		return l.withNewFigures(now, ask).changedFrom(old, ask)
	}
	l.Pairs = append(make([]Pair, 0, MaxPairs+2), l.Pairs...)
	switch {
	case old.Den == 0:
		l.Params = ask.Params
		l.advanceTo(now)
	case old == ask.Params && !ask.hasOwnFigures():
		l.advanceTo(now)
	default:
		l.countOver(ask.Most.Burst)
		if old != ask.Params && ask.Most.SlowerThan(old) {
			l.convertTo(ask.Most)
		}
		l.advanceTo(now)
		l, _ = l.restateIn(ask.Params)
	}
	return l.changedFrom(old, ask)
}

// withNewFigures brings the ledger to now and to the ask's figures, which differ from its own, as
// quota.Params.Convert does.
func (l Ledger) withNewFigures(now quota.Instant, ask Ask) Ledger {
	then, late := l, l
	then.Pairs = append(make([]Pair, 0, MaxPairs+2), l.Pairs...)
	late.Pairs = append(make([]Pair, 0, MaxPairs+2), l.Pairs...)
	then.carryOver(ask)
	then.advanceTo(now)
	late.advanceTo(now)
	late.carryOver(ask)
	if late.Debt < then.Debt || late.Debt == then.Debt && late.Over < then.Over {
		return late
	}
	return then
}

// carryOver changes the ledger to the ask's figures. Its debt beyond the burst, because of reports
// of nodes or of costs that were known later, stays. Of reports it keeps no more than the nodes can
// exceed the new burst by.
func (l *Ledger) carryOver(ask Ask) {
	next, beyond := ask.Params, int64(0)
	switch {
	case ask.Optimistic:
		beyond = min(l.Params.Beyond(l.withoutLeases()), Overshoot(next, ask.Nodes))
	case ask.Owing:
		beyond = l.Params.Beyond(l.withoutLeases())
	}
	s := l.Params.Carry(l.withoutLeases(), next, beyond)
	l.Params, l.Debt, l.Over, l.Gone = next, s.Debt, s.Over, s.Gone
	l.trimLeases(next.Burst + beyond)
}

// trimLeases forgets leases until at most n tokens are leased, beginning with the leases that end
// first. Without this, leases larger than a new burst would keep the bucket empty for longer than
// its burst takes to refill.
func (l *Ledger) trimLeases(n int64) {
	over := l.leasedTokens() - n
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

// withoutLeases returns the ledger without its leases.
func (l *Ledger) withoutLeases() quota.State {
	return quota.State{Debt: l.Debt, Last: l.Last, Over: l.Over, Gone: l.Gone}
}

// countOver moves tokens from Over back to the debt, as far as a burst has room for them. Where
// callers bring figures of their own, the ledger does not have the largest figures.
func (l *Ledger) countOver(burst int64) {
	if n := min(l.Over, min(burst, maxUnits/l.Params.Den)-l.Params.TokensIn(l.Debt)); n > 0 {
		l.Debt += toUnits(n, l.Params.Den)
		if l.Over -= n; l.Over == 0 {
			l.Gone = 0
		}
	}
}

// convertTo changes the ledger to other units.
func (l *Ledger) convertTo(next quota.Params) {
	l.Debt = toUnits(l.Params.TokensIn(l.Debt), next.Den)
	l.Params = next
}

// drainOver brings Over to now. It drains after the debt, which leases keep up.
func (l *Ledger) drainOver(now quota.Instant) {
	s := l.Params.DrainOver(l.withoutLeases(), now, l.Ready(l.Params.Burst))
	l.Over, l.Gone = s.Over, s.Gone
}
