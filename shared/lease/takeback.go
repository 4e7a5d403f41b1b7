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

// TakeBack takes back up to n leased tokens that a node has taken out of its credit, and returns
// how many. The ledger is then as if these had not been granted. The caller sees to it that each
// return is taken once. Tokens whose term may be over do not come back, because the bucket has
// refilled in their place since.
//
// Tokens leave the leases that end with the term or later, the earliest first. So for each instant
// the tokens that are leased until then are never fewer than those that nodes hold until then, also
// where a node joined tokens, which it names by the earlier end, or where leases have merged, which
// end at the later one.
func (l Ledger) TakeBack(now quota.Instant, term Term, n int64) (Ledger, int64) {
	if l.Params.Den == 0 || term == 0 || n <= 0 {
		return l, 0
	}
	next := l.bring(now, Ask{Params: l.Params, Version: l.Version})
	end, taken := term.End(next.Last), int64(0)
	if next.Last >= end {
		return l, 0
	}
	live := next.Pairs[:0]
	for _, pair := range next.Pairs {
		if pair.End >= end {
			part := min(pair.Tokens, n-taken)
			pair.Tokens -= part
			taken += part
		}
		if pair.Tokens > 0 {
			live = append(live, pair)
		}
	}
	if taken == 0 {
		return l, 0
	}
	next.Pairs = live
	next.Debt = max(next.Debt-units(taken, next.Params.Den), units(next.out(), next.Params.Den))
	return next, taken
}

// TakeBack is Ledger.TakeBack for windows: tokens count no more where they were lent.
func (l WindowLedger) TakeBack(now quota.Instant, term Term, n int64) (WindowLedger, int64) {
	if l.Windows.Quota == 0 || term == 0 || n <= 0 {
		return l, 0
	}
	next := l.At(now, Ask{Windows: l.Windows, Version: l.Version})
	taken := next.Windows.TakeBack(&next.History, term.End(next.History.Last), n)
	if taken == 0 {
		return l, 0
	}
	return next, taken
}
