// Package lease holds the arithmetic of leased tokens: what the control plane may grant (Ledger),
// what a node may spend (Credit), and how much of each. It has no clock and does no I/O.
//
// The rule: leased tokens that may not have expired yet count against the burst,
//
//	level + out <= burst
//
// A grant moves tokens from level to out, expiry makes room, and refill stops at the cap.
//
// So in every interval (s, t] all nodes together use at most burst + rate·(t-s): what they use
// comes from leases that were unexpired at s, at most out(s), or from tokens granted since. Tokens
// that a node has not used go back from out to level, once and before their lease ends (TakeBack).
// Clocks are never compared; a lost message or a dead node costs tokens and never adds any.
package lease

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// Figures of the protocol.
const (
	// Deadline is how long a request waits for the control plane at most. Tokens granted to waiting
	// requests count as leased for as long, because a reply may be used that late.
	Deadline = 50 * quota.Millisecond
	// Soon is the deadline of requests of a bucket that Hurries, where answers come much sooner. A
	// request whose answer comes later asks again.
	Soon = 10 * quota.Millisecond
	// MaxPairs bounds the pairs of a ledger; beyond it the two earliest become one with the later
	// end.
	MaxPairs = 6

	pieces         = 2 // the end of kept tokens is rounded to TTL/pieces, so a bucket has at most pieces+1 ends
	waitingPieces  = 1
	minTTL         = 200 * quota.Millisecond
	maxTTL         = quota.LongestLease
	ttlPerWindow   = 20 // TTL is a twentieth of the time in which the bucket refills
	minLeaseWindow = quota.Second
	// hurriesBelow: of a shorter window what counts as leased for a deadline, which the ledger may
	// double, is more than 1 in 50.
	hurriesBelow = 2 * 50 * Deadline
	// maxUnits is where debts saturate: above every full burst, and low enough that an instant of
	// the next fifty years plus as many microseconds still is below 2^53, so that Lua computes it
	// exactly.
	maxUnits = quota.MaxUnits + quota.MaxUnits/4
)

// Pair is Tokens leased until End, on the control plane's clock.
type Pair struct {
	End    quota.Instant
	Tokens int64
}

// Ledger is what the control plane remembers of one bucket: the debt at Last (the units that are
// missing from a full bucket, including leased tokens), its figures, the policy set version that
// brought them, and the leases. The zero value is a bucket that was never used.
type Ledger struct {
	Params  quota.Params
	Version uint64
	Last    quota.Instant
	Debt    int64
	Pairs   []Pair
	// Since is when a bucket that is Owing began or was given tokens, and when one got its figures
	// in the place of others: reservations of before, and leases that were over then, give nothing
	// back. 0 for other buckets.
	Since quota.Instant
	// Over and Gone are those of quota.State: used tokens for which a lowered limit has no room.
	Over int64
	Gone quota.Instant
}

// Ask is what a node asks for one bucket.
type Ask struct {
	// Params are the limit's figures at policy set Version.
	Params  quota.Params
	Version uint64
	// Waiting is the number of requests that wait for this answer, each of Cost tokens (at least
	// 1).
	Waiting, Cost int64
	// Deadline is how late a waiting request may use its tokens; they count as leased for as long.
	// 0: they count as used at once.
	Deadline quota.Span
	// Keep is how many tokens the node wants to hold in addition; it applies to leased buckets
	// only.
	Keep int64
	// Nodes is the number of nodes that share the bucket, at least 1.
	Nodes int64
	// Used are tokens of an optimistic bucket that a node reports as used; such an ask wants no
	// tokens.
	Used int64
	// Optimistic: nodes report what they used of the bucket, which can be more than it holds. A
	// grant returns its debt.
	Optimistic bool
	// Owing: requests may cost more than they had reserved, so the bucket can owe more than it
	// holds.
	Owing bool
	// Windows are the figures of a window algorithm, at the bucket's own offset; the zero value
	// means a token bucket.
	Windows quota.Windows
	// Hold is how long nodes hold tokens, if longer than TTL(Params): nodes compute with the whole
	// limit where Params are a part of it.
	Hold quota.Span
	// Most are the largest figures that any caller may have, where callers bring figures of their
	// own; the zero value elsewhere. Params are then those of this caller. Windows are the largest
	// ones too, and Params.Burst is the caller's quota.
	Most quota.Params
	// Reserved, if not 0, names what waiting requests are granted as reservations, the first as
	// number 1: their cost is known later.
	Reserved uint64
}

// TTL is how long the kept tokens of this ask count as leased; 0 if none may be kept.
func (a Ask) TTL() quota.Span {
	if ttl := TTL(a.Params); ttl > 0 {
		return max(ttl, a.Hold)
	}
	return 0
}

// Grant is the control plane's answer.
type Grant struct {
	// Stale: the ask was made under an older policy set than the ledger's; nothing was granted.
	Stale bool
	// Waiting is the number of waiting requests that got their whole cost. Keep is the tokens to
	// hold.
	Waiting, Keep int64
	// Term is that of the tokens to keep, and without any that of the tokens for waiting requests.
	// By it a node gives back those that it does not use. It is 0 if nothing was leased.
	Term Term
	// NotBefore is 0 if all waiting requests got their cost, or if an ask that wants nothing could
	// get it. Otherwise it is the wait until Cost tokens are available if no other node takes any;
	// to ask earlier is useless. It is quota.Never if Cost is above the burst of the ask.
	NotBefore quota.Span
	// Level is the whole tokens that the bucket still holds.
	Level int64
	// FullAfter is how long a bucket of a window algorithm takes until it is full if it is not
	// used, or one that is Owing. It is 0 for other token buckets, where it follows from the level.
	FullAfter quota.Span
	// Debt is, for an optimistic bucket, the units that are missing from a full one after the ask
	// or report. Where callers bring figures of their own, they are units of the largest figures.
	Debt int64
	// Delay is how long the debt before the waiting requests takes to drain. For a leaky bucket it
	// is how long the first of them must be held back.
	Delay quota.Span
	// Doubt: the bucket may lack tokens that were not used, because its store has lost state.
	// Stores say so where it may matter: see Tells.
	Doubt bool
	// Changed: the ledger has changed by more than the passing of time and must be stored.
	Changed bool
}

// Tells reports whether the grant says if the bucket is in doubt: those that refuse do, and those
// for which no request waits. Others are most of all, and the store need not look.
func (g Grant) Tells() bool { return g.NotBefore != 0 || g.Waiting == 0 }

// TTL is how long a node may hold tokens of a bucket, from the moment it sent the request: a
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

// Fresh is the ledger of an unknown bucket, filled to percent of its burst: 100 for a store that
// has lost nothing, less for one that may have lost its state. What it lacks is of no reservation.
func Fresh(p quota.Params, version uint64, now quota.Instant, percent int64) Ledger {
	lacks := p.UnitsFor(p.Burst - Fill(p.Burst, percent))
	return Ledger{Params: p, Version: version, Last: now, Debt: lacks, Since: now}
}

// Touched is when the ledger was last brought to the time.
func (l Ledger) Touched() quota.Instant { return l.Last }

// Doubted is the ledger of a bucket whose store may have lost the last that was taken of it: filled
// to percent of its burst at most.
func (l Ledger) Doubted(now quota.Instant, _ Ask, percent int64) Ledger {
	if !l.known() {
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
		return l.count(now, ask)
	}
	if l.restates(ask) {
		return l.as(now, ask, ask.Waiting > 0 || ask.looks(), Ledger.Grant)
	}
	// Bring the bucket to now and to the ask's figures.
	before := l.Params
	l = l.At(now, ask)
	p := l.Params
	// First serve the requests that wait, as many as get their whole cost.
	available := max(0, (p.Burst*p.Den-l.Debt)/p.Den)
	cost := max(ask.Cost, 1)
	g := Grant{Waiting: min(max(ask.Waiting, 0), available/cost)}
	if g.Waiting > 0 {
		g.Delay = p.Delay(quota.State{Debt: l.Debt, Last: l.Last}, now)
	}
	l.lend(g.Waiting*cost, ask.Deadline, waitingPieces)
	available -= g.Waiting * cost
	// Then lease tokens to keep, unless a request lacks what is left.
	if ttl := ask.TTL(); ttl > 0 && g.Waiting >= ask.Waiting {
		g.Keep = keepShare(ask, available)
		l.lend(g.Keep, ttl, pieces)
	}
	switch {
	case g.Keep > 0:
		g.Term = termOf(l.end(ask.TTL(), pieces))
	case g.Waiting > 0 && ask.Deadline > 0:
		g.Term = termOf(l.end(ask.Deadline, waitingPieces))
	}
	g.Level = available - g.Keep
	if ask.Optimistic {
		g.Debt, g.Delay = l.debtFor(ask), 0
	}
	l.tellFull(now, ask, &g)
	g.Changed = g.Waiting > 0 || g.Keep > 0 || before.Den != 0 && before != p
	if g.Waiting < ask.Waiting || ask.looks() && available < cost {
		g.NotBefore = l.wait(now, cost)
	}
	return l, g
}

// Look is Grant without a charge: NotBefore is 0 if all waiting requests can have their cost. In a
// group of asks that must all be granted or none, all are looked at first; if the group gets
// nothing, the ledgers that Look returns are stored if Changed.
func (l Ledger) Look(now quota.Instant, ask Ask) (Ledger, Grant) {
	if l.Version > ask.Version && l.Params != ask.Params && l.Params.Den != 0 {
		return l, Grant{Stale: true}
	}
	if l.restates(ask) {
		return l.as(now, ask, ask.Waiting > 0, Ledger.Look)
	}
	before := l.Params
	l = l.At(now, ask)
	p, cost := l.Params, max(ask.Cost, 1)
	g := Grant{Level: max(0, (p.Burst*p.Den-l.Debt)/p.Den), Changed: before.Den != 0 && before != p}
	if g.Level/cost < ask.Waiting {
		g.NotBefore = l.wait(now, cost)
	}
	if ask.Optimistic {
		g.Debt = l.debtFor(ask)
	}
	l.tellFull(now, ask, &g)
	return l, g
}

// wait is how long until cost tokens are available, Never if the bucket cannot hold as many.
func (l Ledger) wait(now quota.Instant, cost int64) quota.Span {
	if cost > l.Params.Burst {
		return quota.Never
	}
	return max(1, quota.Span(l.Ready(cost)-now))
}

// advance refills the bucket. Leased tokens bound the refill until they expire, so the debt at now
// is at least the tokens that were still leased at each past expiry, less what has been earned
// since.
func (l *Ledger) advance(now quota.Instant) {
	p := l.Params
	if l.Over > 0 {
		l.drainOver(now)
	}
	debt := earned(l.Debt, now-l.Last, p.Num)
	for _, pair := range l.Pairs {
		if pair.End <= now {
			debt = max(debt, earned(units(l.outAt(pair.End), p.Den), now-pair.End, p.Num))
		}
	}
	live := l.Pairs[:0]
	for _, pair := range l.Pairs {
		if pair.End > now {
			live = append(live, pair)
		}
	}
	l.Pairs, l.Last = live, now
	l.Debt = max(debt, units(l.out(), p.Den))
}

// lend counts n tokens as used, and as leased for span.
func (l *Ledger) lend(n int64, span quota.Span, m int64) {
	if n > 0 {
		l.Debt += n * l.Params.Den
		l.hold(n, span, m)
	}
}

// end is when tokens end that are leased for span now: it is rounded up to the next multiple of a
// piece, so that few pairs are enough.
func (l *Ledger) end(span quota.Span, m int64) quota.Instant {
	if span <= 0 {
		return l.Last
	}
	w := (int64(span) + m - 1) / m
	return quota.Instant((int64(l.Last)/w + m + 1) * w)
}

// hold counts n tokens as leased for span.
func (l *Ledger) hold(n int64, span quota.Span, m int64) {
	if n <= 0 || span <= 0 {
		return
	}
	end, at := l.end(span, m), 0
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

// Ready is the first instant at which n tokens are available if no other node takes any, for 0 < n
// <= burst.
func (l Ledger) Ready(n int64) quota.Instant {
	p := l.Params
	ready := l.Last + quota.Instant(ceilDiv(max(0, l.Debt+(n-p.Burst)*p.Den), p.Num))
	for _, pair := range l.Pairs {
		if over := l.outAt(pair.End) + n - p.Burst; over > 0 {
			ready = max(ready, pair.End+quota.Instant(ceilDiv(units(over, p.Den), p.Num)))
		}
	}
	return ready
}

// Forgettable is the instant from which the ledger equals an absent one: a store must keep it until
// then, and may drop it after.
func (l Ledger) Forgettable() quota.Instant {
	return l.Params.ForgetOver(l.state(), l.Ready(l.Params.Burst))
}

// out is the number of leased tokens that may not have expired at the ledger's own time.
func (l Ledger) out() int64 { return l.outAt(math.MinInt64) }

// outAt is the number of leased tokens that end at or after end.
func (l Ledger) outAt(end quota.Instant) int64 {
	var n int64
	for _, pair := range l.Pairs {
		if pair.End >= end {
			n += pair.Tokens
		}
	}
	return n
}

// earned is debt less what span earns at num units a microsecond, at least 0. It forms the product
// only where it fits.
func earned(debt int64, span quota.Instant, num int64) int64 {
	if int64(span) > debt/num {
		return 0
	}
	return debt - int64(span)*num
}

// units is n tokens of den units. It saturates above the largest burst, because tokens leased under
// an older, larger limit can exceed every sum that the new figures were checked for.
func units(n, den int64) int64 {
	if n > maxUnits/den {
		return maxUnits
	}
	return n * den
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
