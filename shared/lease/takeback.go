package lease

import "github.com/weir-proxy/weir/shared/quota"

// Term names the end of leased tokens: it has the lowest bits of that instant by the ledger's
// clock, which no node compares with its own clock. 0 means no term.
type Term uint32

// termOf returns the term of tokens that end at an instant.
func termOf(end quota.Instant) Term { return Term(end) }

// End returns the instant of a term within half an hour of now.
func (l Term) End(now quota.Instant) quota.Instant {
	return now + quota.Instant(int32(uint32(l)-uint32(now)))
}

// Late is how long after their end unused tokens can still go back. This is for tokens whose answer
// came too late for a request with the deadline Soon. The request asks again and gives them back
// within two deadlines.
const Late = 2 * Deadline

// Back is a node's message about tokens that it was leased: how many it has taken out of its credit
// unused, and how many were used and still count as leased.
type Back struct{ Unused, Used int64 }

// TakeBack takes back unused tokens of a term, and counts used tokens as used in place of leased.
// It returns how many of each it found. Then the ledger is as if unused tokens had not been
// granted, and as if used tokens had been granted to a waiting request. The caller makes sure that
// each message counts once. Used tokens of a term that is over count as leased no more; unused
// tokens can go back for Late.
//
// Tokens leave the leases that end with the term or later, the earliest first. So for each instant,
// the tokens that are leased until then are never fewer than the tokens that nodes hold until then.
// This also holds where a node joined tokens, which it names by the earlier end, or where leases
// have merged, which end at the later end.
func (l Ledger) TakeBack(now quota.Instant, term Term, b Back) (Ledger, Back) {
	if l.Params.Den == 0 || term == 0 {
		return l, Back{}
	}
	next := l.bringTo(now, Ask{Params: l.Params, Version: l.Version})
	end := term.End(next.Last)
	if next.Last >= end {
		if next, ok := next.takeBackLate(end, b.Unused); ok {
			return next, Back{Unused: b.Unused}
		}
		return l, Back{}
	}
	// Take the tokens out of the leases that end with the term or later.
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
	// Unused tokens also leave the debt, which leases still bound.
	if done == (Back{}) {
		return l, done
	}
	next.Pairs = live
	next.Debt = max(next.Debt-toUnits(done.Unused, next.Params.Den), toUnits(next.leasedTokens(), next.Params.Den))
	return next, done
}

// takeBackLate takes back tokens whose term is over. While the term lasted these tokens were
// missing, however many the bucket earned. Since then it may have earned tokens that it had no room
// for with them, and that number does not come back. It reports false if no token comes back: after
// a change of figures, which may have rounded the rest away, and in a bucket of which more was used
// than it held.
func (l Ledger) takeBackLate(end quota.Instant, n int64) (Ledger, bool) {
	if n <= 0 || l.Last >= end+quota.Instant(Late) || end < l.Since+quota.Instant(Late) || l.Over > 0 {
		return l, false
	}
	p := l.Params
	debt := max(l.Debt-debtAfter(toUnits(n, p.Den), l.Last-end, p.Num), toUnits(l.leasedTokens(), p.Den))
	if debt >= l.Debt {
		return l, false
	}
	l.Debt = debt
	return l, true
}

// TakeBack is Ledger.TakeBack for windows: unused tokens no longer count, and used tokens count at
// the time of the ledger.
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
		Used:   next.Windows.CountNow(&next.History, end, max(b.Used, 0)),
	}
	if done == (Back{}) {
		return l, done
	}
	return next, done
}
