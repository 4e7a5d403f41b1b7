package lease

import "github.com/weir-proxy/weir/shared/quota"

const (
	// A bucket that was not touched for 1/idlesPerTTL of a TTL needs no tokens. This is the time of
	// demand that kept tokens cover.
	idlesPerTTL = keepPerTTL
	// ridesPerTTL replaces idlesPerTTL if the tokens can go back with a call that goes anyway.
	ridesPerTTL = 2 * idlesPerTTL
	// returnAhead is how long before their end unused tokens go back, so that they arrive in time.
	returnAhead = 25 * quota.Millisecond
	// showsFrom: a demand above this part of the rate has a visible effect.
	showsFrom = 4
	// loneShare: all nodes together may keep this part of the level idle.
	loneShare = 64
)

// earlierTerm returns the term that ends earlier, 0 if one of them is 0.
func (t Term) earlierTerm(other Term) Term {
	switch {
	case t == 0 || other == 0:
		return 0
	case int32(other-t) < 0:
		return other
	}
	return t
}

// Spent is a number of used tokens of a term.
type Spent struct {
	Term   Term
	Tokens int64
}

// clearUsed forgets the used tokens, because the control plane is informed of them. The lease then
// ends a tick earlier. So Unspend sees that tokens taken from it count as used.
func (l *Lease) clearUsed() {
	if l.Used > 0 {
		l.Used = 0
		l.Expiry--
	}
}

// TakeUsed returns and clears the numbers of used tokens, for a report to the control plane.
func (c Credit) TakeUsed(now quota.Instant) (Credit, [2]Spent) {
	var used [2]Spent
	for i := range c.Leases {
		held := &c.Leases[i]
		if held.Used > 0 && held.Term != 0 && now < held.Expiry {
			used[i] = Spent{held.Term, held.Used}
		}
		held.clearUsed()
	}
	return c, used
}

// Refills reports whether tokens that count as leased may keep a bucket from refilling with a
// visible effect: the bucket is not nearly empty, and more than a part of its earned tokens is
// used. A caller that empties a bucket of a second has used most of it before its first lease is
// over.
func (c Credit) Refills(now quota.Instant, p quota.Params) bool {
	return c.Level > p.Burst/4 && showsFrom*c.tokensIn(now, p, TTL(p)) >= p.Earned(TTL(p))
}

// Rests reports whether a bucket was not touched for the time that kept tokens cover; for half of
// it if its tokens can go back with a call that goes anyway.
func (c Credit) Rests(now quota.Instant, p quota.Params, rides bool) bool {
	if rides {
		return now-c.DemandAt >= quota.Instant(TTL(p)/ridesPerTTL)
	}
	return now-c.DemandAt >= quota.Instant(TTL(p)/idlesPerTTL)
}

// Needs returns how many of its tokens a node that shares the bucket with others should keep. It
// keeps none of a bucket that rests, except a single token of very many, and otherwise the tokens
// that the demand will use soon. A small surplus is not worth a call.
func (c Credit) Needs(now quota.Instant, p quota.Params, nodes int64, rests bool) int64 {
	held := c.Available(now)
	if rests {
		if held == 1 && c.Level/loneShare >= max(nodes, 1) {
			return 1
		}
		return 0
	}
	span := BackOff(p)
	if c.Level > p.Burst-p.Burst/4 {
		span *= 2
	}
	if need := c.tokensIn(now, p, span); held > 2*need+1 {
		return need
	}
	return held
}

// TakeOut takes tokens out of the credit to give them back: all but hold tokens, and all tokens
// that are about to end. It also returns the numbers of used tokens. Tokens without a term stay.
func (c Credit) TakeOut(now quota.Instant, hold int64) (Credit, [2]Lease) {
	var out [2]Lease
	surplus := max(c.Available(now)-hold, 0)
	first := 0
	if c.Leases[1].Expiry < c.Leases[0].Expiry {
		first = 1
	}
	for _, i := range [2]int{first, 1 - first} {
		held := &c.Leases[i]
		if now >= held.Expiry || held.Term == 0 {
			continue
		}
		n := min(surplus, held.Tokens)
		if now >= held.Expiry-quota.Instant(returnAhead) {
			n = held.Tokens
		}
		out[i] = Lease{Tokens: n, Used: held.Used, Expiry: held.Expiry, Term: held.Term}
		held.Tokens -= n
		held.clearUsed()
		c.Level += n
		surplus = max(surplus-n, 0)
	}
	if out[0].Tokens+out[1].Tokens > 0 {
		c = c.Reopen(now)
	}
	return c, out
}

// LookAgain returns when to check again whether the node needs its tokens; quota.Forever if it has
// none that can go back. With used it is also the time to report used tokens.
func (c Credit) LookAgain(now quota.Instant, p quota.Params, used bool) quota.Instant {
	at := quota.Forever
	for _, held := range c.Leases {
		tells := held.Tokens > 0 || used && held.Used > 0
		if by := held.Expiry - quota.Instant(returnAhead); tells && now < held.Expiry && held.Term != 0 {
			at = min(at, max(by, now))
		}
	}
	if at == quota.Forever {
		return at
	}
	if idle := c.DemandAt + quota.Instant(TTL(p)/idlesPerTTL); idle > now {
		at = min(at, idle)
	}
	return at
}

// Unspend puts back tokens that Spend has taken. It reports false if they were not of one lease, or
// if the control plane was informed meanwhile that they are used.
func (c Credit) Unspend(now quota.Instant, n int64, from Lease) (Credit, bool) {
	for i := range c.Leases {
		held := &c.Leases[i]
		same := from.Term != 0 && held.Term == from.Term && held.Expiry == from.Expiry
		if same && held.Used >= n && now < held.Expiry {
			held.Used -= n
			held.Tokens += n
			return c.Reopen(now), true
		}
	}
	return c, false
}
