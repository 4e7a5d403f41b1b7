package lease

import "github.com/weir-proxy/weir/shared/quota"

// own reports whether the caller may bring figures of its own.
func (a Ask) own() bool { return a.Most.Den > 0 }

// restates reports whether the ask is of a caller with figures of its own, other than those that
// the ledger is counted in.
func (l Ledger) restates(ask Ask) bool {
	return ask.own() && l.Params.Den != 0 && l.Params != ask.Params
}

// as decides an ask of a caller with figures of its own, as quota.Params.TakeAs does. The ledger
// takes the caller's figures over where he was granted something, and where they refill faster;
// otherwise it goes on with those that it has, and he waits for these. The ask learns for how long
// if it waits.
func (l Ledger) as(
	now quota.Instant, ask Ask, waits bool, decide func(Ledger, quota.Instant, Ask) (Ledger, Grant),
) (Ledger, Grant) {
	held := l.bring(now, Ask{Params: l.Params, Version: ask.Version})
	lowered := ask.Most.SlowerThan(l.Params)
	if lowered { // The limit was changed, and nothing earns by more than it has now.
		held = l.At(now, Ask{Params: ask.Most, Version: ask.Version, Optimistic: ask.Optimistic, Owing: ask.Owing,
			Nodes: ask.Nodes})
	}
	held.countOver(ask.Most.Burst)
	next, fits := held.restated(ask.Params)
	var g Grant
	if fits {
		next, g = decide(next.changedFrom(held.Params, ask), now, ask)
	}
	if g.Waiting > 0 || g.Keep > 0 || fits && held.Params.SlowerThan(ask.Params) {
		g.Changed = true
		return next, g
	}
	if g.NotBefore > 0 || !fits && waits {
		wanted, cost := held, max(ask.Cost, 1)
		wanted.Params.Burst = min(ask.Params.Burst, quota.MaxUnits/held.Params.Den)
		g.NotBefore = quota.Never
		if cost <= ask.Params.Burst {
			g.NotBefore = wanted.wait(now, min(cost, wanted.Params.Burst))
		}
	}
	if ask.Optimistic {
		g.Debt = held.debtFor(ask)
	}
	g.Changed = lowered
	return held, g
}

// restated is the ledger in the figures of next, without a cap at their burst. It reports false
// where these cannot express the debt exactly: that is more than their burst.
func (l Ledger) restated(next quota.Params) (Ledger, bool) {
	s, fits := l.Params.Restate(quota.State{Debt: l.Debt}, next)
	if fits {
		l.Params = next
		l.Debt = max(s.Debt, units(l.out(), next.Den))
	}
	return l, fits
}

// expressing is the ledger in figures that can express n tokens more: its own, or the largest, if
// callers bring figures and those of a slow one count in units too small.
func (l Ledger) expressing(n int64, ask Ask) Ledger {
	if ask.own() && l.Params.TokensIn(l.Debt)+min(n, ask.Most.Burst) > maxUnits/l.Params.Den {
		l.convert(ask.Most)
	}
	return l
}

// quotaOf are the windows that an ask is decided by: those of the ledger, with the caller's quota
// where it brings one.
func (a Ask) quotaOf(w quota.Windows) quota.Windows {
	if a.own() {
		w.Quota = min(w.Quota, a.Params.Burst)
	}
	return w
}
