package lease

import "github.com/weir-proxy/weir/shared/quota"

// hasOwnFigures reports whether the caller may bring figures of its own.
func (a Ask) hasOwnFigures() bool { return a.Most.Den > 0 }

// needsRestating reports whether the ask is of a caller whose own figures differ from the figures
// that the ledger is counted in.
func (l Ledger) needsRestating(ask Ask) bool {
	return ask.hasOwnFigures() && l.Params.Den != 0 && l.Params != ask.Params
}

// grantAs decides an ask of a caller with figures of its own, as quota.Params.TakeAs does. The
// ledger takes over the caller's figures if the caller was granted something, and if they refill
// faster. Otherwise it keeps its figures, and the caller waits by the ledger's figures. The ask
// learns for how long if it waits.
func (l Ledger) grantAs(
	now quota.Instant, ask Ask, waits bool, decide func(Ledger, quota.Instant, Ask) (Ledger, Grant),
) (Ledger, Grant) {
	held := l.bringTo(now, Ask{Params: l.Params, Version: ask.Version})
	lowered := ask.Most.SlowerThan(l.Params)
	if lowered { // The limit was changed, and nothing earns by more than it has now.
		held = l.At(now, Ask{Params: ask.Most, Version: ask.Version, Optimistic: ask.Optimistic, Owing: ask.Owing,
			Nodes: ask.Nodes})
	}
	held.countOver(ask.Most.Burst)
	next, fits := held.restateIn(ask.Params)
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
			g.NotBefore = wanted.waitFor(now, min(cost, wanted.Params.Burst))
		}
	}
	if ask.Optimistic {
		g.Debt = held.debtFor(ask)
	}
	g.Changed = lowered
	return held, g
}

// restateIn returns the ledger in the figures of next, without a cap at their burst. It reports
// false if they cannot express the debt exactly, because it is more than their burst.
func (l Ledger) restateIn(next quota.Params) (Ledger, bool) {
	s, fits := l.Params.Restate(quota.State{Debt: l.Debt}, next)
	if fits {
		l.Params = next
		l.Debt = max(s.Debt, toUnits(l.leasedTokens(), next.Den))
	}
	return l, fits
}

// withRoomFor returns the ledger in figures that can express n tokens more: its own or, if callers
// bring figures and the units of a slow caller are too small, the largest.
func (l Ledger) withRoomFor(n int64, ask Ask) Ledger {
	if ask.hasOwnFigures() && l.Params.TokensIn(l.Debt)+min(n, ask.Most.Burst) > maxUnits/l.Params.Den {
		l.convertTo(ask.Most)
	}
	return l
}

// quotaOf returns the windows that decide an ask: the ledger's windows, with the caller's quota if
// the caller brings its own.
func (a Ask) quotaOf(w quota.Windows) quota.Windows {
	if a.hasOwnFigures() {
		w.Quota = min(w.Quota, a.Params.Burst)
	}
	return w
}
