package lease

import "github.com/weir-proxy/weir/shared/quota"

// Term says when leased tokens end: it is the lowest bits of that instant by the ledger's clock,
// which no node compares with its own. 0 is none.
type Term uint32

// termOf is the term of tokens that end at an instant.
func termOf(end quota.Instant) Term { return Term(end) }

// End is the instant of a term within half an hour of now.
func (l Term) End(now quota.Instant) quota.Instant {
	return now + quota.Instant(int32(uint32(l)-uint32(now)))
}

// Late is for how long after their end unused tokens still go back. So those do whose answer came
// too late for a request that was to use them Soon: it asks again, and says so, within two
// deadlines.
const Late = 2 * Deadline

// Back is what a node says of tokens that it was leased: how many it has taken out of its credit
// unused, and how many were used and count as leased still.
type Back struct{ Unused, Used int64 }

// TakeBack takes unused tokens of a term back, and has used ones count as used in place of leased.
// It returns how many of each it found. The ledger is then as if unused ones had not been granted,
// and used ones for a waiting request. The caller sees to it that each message is taken once.
// Used tokens of a term that is over count as leased no more, and unused ones go back for Late.
//
// Tokens leave the leases that end with the term or later, the earliest first. So for each instant
// the tokens that are leased until then are never fewer than those that nodes hold until then, also
// where a node joined tokens, which it names by the earlier end, or where leases have merged, which
// end at the later one.
func (l Ledger) TakeBack(now quota.Instant, term Term, b Back) (Ledger, Back) {
	if l.Params.Den == 0 || term == 0 {
		return l, Back{}
	}
	next := l.bring(now, Ask{Params: l.Params, Version: l.Version})
	end := term.End(next.Last)
	if next.Last >= end {
		if next, ok := next.takeBackLate(end, b.Unused); ok {
			return next, Back{Unused: b.Unused}
		}
		return l, Back{}
	}
	var done Back
	live := next.Pairs[:0]
	for _, pair := range next.Pairs {
		if pair.End >= end {
			unused := min(pair.Tokens, max(b.Unused-done.Unused, 0))
			used := min(pair.Tokens-unused, max(b.Used-done.Used, 0))
			pair.Tokens -= unused + used
			done.Unused += unused
			done.Used += used
		}
		if pair.Tokens > 0 {
			live = append(live, pair)
		}
	}
	if done == (Back{}) {
		return l, done
	}
	next.Pairs = live
	next.Debt = max(next.Debt-units(done.Unused, next.Params.Den), units(next.out(), next.Params.Den))
	return next, done
}

// takeBackLate takes tokens back whose term is over. While that lasted they were missing, whatever
// the bucket earned. Since then it may have earned in their place what it had no room for without
// them, so that much of them does not come back. It reports false if nothing does: none after a
// change of figures, which may have rounded the rest away, and none of a bucket of which more was
// used than it held.
func (l Ledger) takeBackLate(end quota.Instant, n int64) (Ledger, bool) {
	if n <= 0 || l.Last >= end+quota.Instant(Late) || end < l.Since+quota.Instant(Late) || l.Over > 0 {
		return l, false
	}
	p := l.Params
	debt := max(l.Debt-earned(units(n, p.Den), l.Last-end, p.Num), units(l.out(), p.Den))
	if debt >= l.Debt {
		return l, false
	}
	l.Debt = debt
	return l, true
}

// TakeBack is Ledger.TakeBack for windows: unused tokens count no more where they were lent, and
// used ones count from now on.
func (l WindowLedger) TakeBack(now quota.Instant, term Term, b Back) (WindowLedger, Back) {
	if l.Windows.Quota == 0 || term == 0 {
		return l, Back{}
	}
	next := l.At(now, Ask{Windows: l.Windows, Version: l.Version})
	end := term.End(next.History.Last)
	if next.History.Last >= end+quota.Instant(Late) {
		return l, Back{}
	}
	done := Back{
		Unused: next.Windows.TakeBack(&next.History, end, max(b.Unused, 0)),
		Used:   next.Windows.Bring(&next.History, end, max(b.Used, 0)),
	}
	if done == (Back{}) {
		return l, done
	}
	return next, done
}
