// Package lease holds the arithmetic of leased tokens: how many the control plane may grant
// (Ledger), how many a node may spend (Credit), and how many each should ask for. It has no clock
// and does no I/O.
//
// The rule: leased tokens that may not have expired yet count against the burst,
//
//	level + out <= burst
//
// A grant moves tokens from level to out, expiry makes room, and refill stops at the cap.
//
// So in every interval (s, t] all nodes together use at most burst + rate·(t-s): their tokens come
// from leases that were unexpired at s, at most out(s), or were granted since. Unused tokens of a
// node go back from out to level, once and before their lease ends (TakeBack). Clocks are never
// compared. A lost message or a dead node costs tokens and never adds any.
package lease

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// Figures of the protocol.
const (
	// Deadline is the longest time that a request waits for the control plane. Tokens granted to
	// waiting requests count as leased for this time, because a reply may be used that late.
	Deadline = 50 * quota.Millisecond
	// Soon is the deadline of requests of a bucket that Hurries, where answers come much sooner. A
	// request whose answer comes later asks again.
	Soon = 10 * quota.Millisecond
	// MaxPairs bounds the pairs of a ledger. Beyond it the two earliest become one pair with the
	// later end.
	MaxPairs = 6

	pieces         = 2 // the end of kept tokens is rounded to TTL/pieces, so a bucket has at most pieces+1 ends
	waitingPieces  = 1
	minTTL         = 200 * quota.Millisecond
	maxTTL         = quota.LongestLease
	ttlPerWindow   = 20 // TTL is a twentieth of the time in which the bucket refills
	minLeaseWindow = quota.Second
	// hurriesBelow: in a shorter window, the tokens that count as leased for a deadline, which the
	// ledger may double, are more than 1 in 50.
	hurriesBelow = 2 * 50 * Deadline
	// maxUnits is where debts saturate. It is above every full burst. It is also so low that an
	// instant of the next fifty years plus maxUnits microseconds is below 2^53, so Lua computes it
	// exactly.
	maxUnits = quota.MaxUnits + quota.MaxUnits/4
)

// Pair is a number of Tokens leased until End, on the control plane's clock.
type Pair struct {
	End    quota.Instant
	Tokens int64
}

// Ledger is the control plane's record of one bucket: the debt at Last (the units that are missing
// from a full bucket, including leased tokens), its figures, the policy set version that brought
// them, and the leases. The zero value is a bucket that was never used.
type Ledger struct {
	Params  quota.Params
	Version uint64
	Last    quota.Instant
	Debt    int64
	Pairs   []Pair
	// Since is when an Owing bucket began or was given tokens, or when a bucket got new figures.
	// Older reservations, and leases that were over then, give nothing back. It is 0 for other
	// buckets.
	Since quota.Instant
	// Over and Gone have the meaning of the fields of quota.State: used tokens that a lowered limit
	// has no room for.
	Over int64
	Gone quota.Instant
}

// Ask is a node's request for one bucket.
type Ask struct {
	// Params are the limit's figures at policy set Version.
	Params  quota.Params
	Version uint64
	// Waiting is the number of requests that wait for this answer, each of Cost tokens (at least
	// 1).
	Waiting, Cost int64
	// Deadline is how late a waiting request may use its tokens; they count as leased for this
	// time. 0 means that they count as used at once.
	Deadline quota.Span
	// Keep is how many tokens the node wants to hold in addition. It applies to leased buckets
	// only.
	Keep int64
	// Nodes is the number of nodes that share the bucket, at least 1.
	Nodes int64
	// Used is the number of tokens of an optimistic bucket that a node reports as used. Such an ask
	// wants no tokens.
	Used int64
	// Optimistic means that nodes report the tokens that they used of the bucket, which can be more
	// than it holds. A grant returns its debt.
	Optimistic bool
	// Owing means that requests may cost more than they had reserved, so the bucket can owe more
	// than it holds.
	Owing bool
	// Windows are the figures of a window algorithm, at the bucket's own offset; the zero value
	// means a token bucket.
	Windows quota.Windows
	// Hold is how long nodes hold tokens, if longer than TTL(Params): nodes compute with the whole
	// limit where Params are a part of it.
	Hold quota.Span
	// Most are the largest figures that any caller may have, where callers bring figures of their
	// own; the zero value elsewhere. Then Params are the figures of this caller, Windows the
	// largest figures, and Params.Burst is the caller's quota.
	Most quota.Params
	// Reserved, if not 0, names the reservations of the waiting requests, whose cost is known
	// later. The first reservation has number 1.
	Reserved uint64
}

// TTL returns how long the kept tokens of this ask count as leased; 0 if none may be kept.
func (a Ask) TTL() quota.Span {
	if ttl := TTL(a.Params); ttl > 0 {
		return max(ttl, a.Hold)
	}
	return 0
}

// Grant is the control plane's answer.
type Grant struct {
	// Stale means that the ask has an older policy set than the ledger. Nothing was granted.
	Stale bool
	// Waiting is the number of waiting requests that got their whole cost. Keep is the number of
	// tokens to hold.
	Waiting, Keep int64
	// Term is the term of the tokens to keep or, without any, of the tokens for waiting requests. A
	// node names it when it gives tokens back. It is 0 if nothing was leased.
	Term Term
	// NotBefore is 0 if all waiting requests got their cost, or if an ask that wants nothing could
	// get it. Otherwise it is the wait until Cost tokens are available if no other node takes any;
	// an earlier ask is useless. It is quota.Never if Cost is above the burst of the ask.
	NotBefore quota.Span
	// Level is the number of whole tokens that the bucket still holds.
	Level int64
	// FullAfter is how long a bucket of a window algorithm, or an Owing bucket, takes until it is
	// full if it is not used. It is 0 for other token buckets, where it follows from the level.
	FullAfter quota.Span
	// Debt is, for an optimistic bucket, the units that are missing from a full bucket after the
	// ask or report. Where callers bring figures of their own, these are units of the largest
	// figures.
	Debt int64
	// Delay is how long the debt before the waiting requests takes to drain. In a leaky bucket the
	// first of these requests must be delayed by this time.
	Delay quota.Span
	// Doubt means that the bucket may lack tokens that were not used, because its store has lost
	// state. Stores set it where it may matter: see Tells.
	Doubt bool
	// Changed means that the ledger has changed by more than the passing of time and must be
	// stored.
	Changed bool
}

// Tells reports whether the grant has a valid Doubt: a grant that refuses has it, and a grant
// without waiting requests. For other grants, which are the most frequent, the store need not look.
func (g Grant) Tells() bool { return g.NotBefore != 0 || g.Waiting == 0 }

// TTL returns how long a node may hold tokens of a bucket, from the moment it sent the request: a
// twentieth of the bucket's refill time, within 200 ms and 30 s. It is 0 for a bucket that refills
// within a second: kept tokens would tie up too much of the burst, so none are granted and every
// request asks the control plane.
func TTL(p quota.Params) quota.Span {
	if p.Window() < minLeaseWindow {
		return 0
	}
	return min(max(p.Window()/ttlPerWindow, minTTL), maxTTL)
}

// Hurries reports whether a bucket refills so soon that tokens of requests should not count as
// leased for a whole Deadline.
func Hurries(p quota.Params) bool { return p.Window() < hurriesBelow }

// Fresh returns the ledger of an unknown bucket, filled to percent of its burst: 100 for a store
// that has lost nothing, less for a store that may have lost its state. Its missing tokens belong
// to no reservation.
func Fresh(p quota.Params, version uint64, now quota.Instant, percent int64) Ledger {
	lacks := p.UnitsFor(p.Burst - Fill(p.Burst, percent))
	return Ledger{Params: p, Version: version, Last: now, Debt: lacks, Since: now}
}

// Touched returns when the ledger was last brought up to date.
func (l Ledger) Touched() quota.Instant { return l.Last }

// Doubted returns the ledger of a bucket whose store may have lost its last changes. It is filled
// to percent of its burst at most.
func (l Ledger) Doubted(now quota.Instant, _ Ask, percent int64) Ledger {
	if !l.isKnown() {
		return l
	}
	l = l.At(now, Ask{Params: l.Params, Version: l.Version})
	least := Fresh(l.Params, l.Version, now, percent)
	if l.Debt < least.Debt {
		l.Debt, l.Since = least.Debt, least.Since
	}
	return l
}

// Grant answers ask at now. The caller stores the returned ledger if the grant says Changed, until
// it is Forgettable.
func (l Ledger) Grant(now quota.Instant, ask Ask) (Ledger, Grant) {
	if l.Version > ask.Version && l.Params != ask.Params && l.Params.Den != 0 {
		return l, Grant{Stale: true}
	}
	if ask.Used > 0 {
		return l.countReport(now, ask)
	}
	if l.needsRestating(ask) {
		return l.grantAs(now, ask, ask.Waiting > 0 || ask.looksOnly(), Ledger.Grant)
	}
	// Bring the bucket to now and to the ask's figures.
	before := l.Params
	l = l.At(now, ask)
	p := l.Params
	// First serve the waiting requests that can get their whole cost.
	available := max(0, (p.Burst*p.Den-l.Debt)/p.Den)
	cost := max(ask.Cost, 1)
	g := Grant{Waiting: min(max(ask.Waiting, 0), available/cost)}
	if g.Waiting > 0 {
		g.Delay = p.Delay(quota.State{Debt: l.Debt, Last: l.Last}, now)
	}
	l.lendTokens(g.Waiting*cost, ask.Deadline, waitingPieces)
	available -= g.Waiting * cost
	// Then lease tokens to keep, unless a waiting request got none.
	if ttl := ask.TTL(); ttl > 0 && g.Waiting >= ask.Waiting {
		g.Keep = keepShare(ask, available)
		l.lendTokens(g.Keep, ttl, pieces)
	}
	// Name the lease, and describe the bucket after the grant.
	switch {
	case g.Keep > 0:
		g.Term = termOf(l.leaseEnd(ask.TTL(), pieces))
	case g.Waiting > 0 && ask.Deadline > 0:
		g.Term = termOf(l.leaseEnd(ask.Deadline, waitingPieces))
	}
	g.Level = available - g.Keep
	if ask.Optimistic {
		g.Debt, g.Delay = l.debtFor(ask), 0
	}
	l.setFullAfter(now, ask, &g)
	g.Changed = g.Waiting > 0 || g.Keep > 0 || before.Den != 0 && before != p
	if g.Waiting < ask.Waiting || ask.looksOnly() && available < cost {
		g.NotBefore = l.waitFor(now, cost)
	}
	return l, g
}

// Look is Grant without a charge: NotBefore is 0 if all waiting requests can have their cost. In a
// group of asks that must all be granted or all refused, Look is called for each ask first. If the
// group gets nothing, the ledgers that Look returns are stored if Changed.
func (l Ledger) Look(now quota.Instant, ask Ask) (Ledger, Grant) {
	if l.Version > ask.Version && l.Params != ask.Params && l.Params.Den != 0 {
		return l, Grant{Stale: true}
	}
	if l.needsRestating(ask) {
		return l.grantAs(now, ask, ask.Waiting > 0, Ledger.Look)
	}
	before := l.Params
	l = l.At(now, ask)
	p, cost := l.Params, max(ask.Cost, 1)
	g := Grant{Level: max(0, (p.Burst*p.Den-l.Debt)/p.Den), Changed: before.Den != 0 && before != p}
	if g.Level/cost < ask.Waiting {
		g.NotBefore = l.waitFor(now, cost)
	}
	if ask.Optimistic {
		g.Debt = l.debtFor(ask)
	}
	l.setFullAfter(now, ask, &g)
	return l, g
}

// waitFor returns how long until cost tokens are available, Never if the bucket is too small.
func (l Ledger) waitFor(now quota.Instant, cost int64) quota.Span {
	if cost > l.Params.Burst {
		return quota.Never
	}
	return max(1, quota.Span(l.Ready(cost)-now))
}

// advanceTo refills the bucket. Leased tokens bound the refill until they expire. So the debt at
// now is at least the tokens that were still leased at each past expiry, less the tokens earned
// since.
func (l *Ledger) advanceTo(now quota.Instant) {
	p := l.Params
	if l.Over > 0 {
		l.drainOver(now)
	}
	debt := debtAfter(l.Debt, now-l.Last, p.Num)
	for _, pair := range l.Pairs {
		if pair.End <= now {
			debt = max(debt, debtAfter(toUnits(l.leasedAt(pair.End), p.Den), now-pair.End, p.Num))
		}
	}
	live := l.Pairs[:0]
	for _, pair := range l.Pairs {
		if pair.End > now {
			live = append(live, pair)
		}
	}
	l.Pairs, l.Last = live, now
	l.Debt = max(debt, toUnits(l.leasedTokens(), p.Den))
}

// lendTokens adds n tokens to the debt, and counts them as leased for span.
func (l *Ledger) lendTokens(n int64, span quota.Span, m int64) {
	if n > 0 {
		l.Debt += n * l.Params.Den
		l.holdTokens(n, span, m)
	}
}

// leaseEnd returns when tokens end that are leased for span now. It is rounded up to the next
// multiple of a piece, so that few pairs are enough.
func (l *Ledger) leaseEnd(span quota.Span, m int64) quota.Instant {
	if span <= 0 {
		return l.Last
	}
	w := (int64(span) + m - 1) / m
	return quota.Instant((int64(l.Last)/w + m + 1) * w)
}

// holdTokens counts n tokens as leased for span.
func (l *Ledger) holdTokens(n int64, span quota.Span, m int64) {
	if n <= 0 || span <= 0 {
		return
	}
	end, at := l.leaseEnd(span, m), 0
	for at < len(l.Pairs) && l.Pairs[at].End < end {
		at++
	}
	if at < len(l.Pairs) && l.Pairs[at].End == end {
		l.Pairs[at].Tokens += n
		return
	}
	l.Pairs = append(l.Pairs, Pair{})
	copy(l.Pairs[at+1:], l.Pairs[at:])
	l.Pairs[at] = Pair{End: end, Tokens: n}
	if len(l.Pairs) > MaxPairs {
		l.Pairs[1].Tokens += l.Pairs[0].Tokens
		l.Pairs = append(l.Pairs[:0], l.Pairs[1:]...)
	}
}

// Ready returns the first instant at which n tokens are available if no other node takes any, for 0
// < n <= burst.
func (l Ledger) Ready(n int64) quota.Instant {
	p := l.Params
	ready := l.Last + quota.Instant(ceilDiv(max(0, l.Debt+(n-p.Burst)*p.Den), p.Num))
	for _, pair := range l.Pairs {
		if over := l.leasedAt(pair.End) + n - p.Burst; over > 0 {
			ready = max(ready, pair.End+quota.Instant(ceilDiv(toUnits(over, p.Den), p.Num)))
		}
	}
	return ready
}

// Forgettable returns the instant from which the ledger equals an absent one. A store must keep it
// until then, and may drop it after.
func (l Ledger) Forgettable() quota.Instant {
	return l.Params.ForgetOver(l.withoutLeases(), l.Ready(l.Params.Burst))
}

// leasedTokens returns the number of leased tokens that may not have expired at the ledger's own
// time.
func (l Ledger) leasedTokens() int64 { return l.leasedAt(math.MinInt64) }

// leasedAt returns the number of leased tokens that end at or after end.
func (l Ledger) leasedAt(end quota.Instant) int64 {
	var n int64
	for _, pair := range l.Pairs {
		if pair.End >= end {
			n += pair.Tokens
		}
	}
	return n
}

// debtAfter returns debt less the units that span earns, at num units a microsecond, at least 0. It
// forms the product only where it fits.
func debtAfter(debt int64, span quota.Instant, num int64) int64 {
	if int64(span) > debt/num {
		return 0
	}
	return debt - int64(span)*num
}

// toUnits returns n tokens of den units as units. It saturates above the largest burst, because
// tokens leased under an older, larger limit can exceed every sum that the new figures were checked
// for.
func toUnits(n, den int64) int64 {
	if n > maxUnits/den {
		return maxUnits
	}
	return n * den
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
