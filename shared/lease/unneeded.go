package lease

import "github.com/weir-proxy/weir/shared/quota"

const (
	// idlesPerTTL: a bucket that was not touched for this part of a TTL needs no tokens. So long
	// the demand lasts that kept tokens cover.
	idlesPerTTL = keepPerTTL
	// ridesPerTTL is the same where its tokens go back with a call that goes anyway.
	ridesPerTTL = 2 * idlesPerTTL
	// returnAhead is how long before their end tokens go back that no request has used: they must
	// arrive in time.
	returnAhead = 25 * quota.Millisecond
	// showsFrom: a demand above this part of the rate shows.
	showsFrom = 4
	// loneShare: all nodes together may let this part of the level lie idle.
	loneShare = 64
)

// earlier is the term that ends earlier, 0 if one of them is none.
func (t Term) earlier(other Term) Term {
	switch {
	case t == 0 || other == 0:
		return 0
	case int32(other-t) < 0:
		return other
	}
	return t
}

// Spent are tokens of a term that were used.
type Spent struct {
	Term   Term
	Tokens int64
}

// tell forgets the used tokens, of which the control plane hears. The lease ends a tick earlier: so
// Unspend sees that what was taken of it counts as used.
func (l *Lease) tell() {
	if l.Used > 0 {
		l.Used = 0
		l.Expiry--
	}
}

// TakeUsed takes out which tokens have been used, to tell the control plane.
func (c Credit) TakeUsed(now quota.Instant) (Credit, [2]Spent) {
	var used [2]Spent
	for i := range c.Leases {
		held := &c.Leases[i]
		if held.Used > 0 && held.Term != 0 && now < held.Expiry {
			used[i] = Spent{held.Term, held.Used}
		}
		held.tell()
	}
	return c, used
}

// Refills reports whether tokens that count as leased may keep a bucket from refilling so that it
// shows: it is not nearly empty, and more than a part of what it earns is used. Who empties a
// bucket of a second has used most of it before its first lease is over.
func (c Credit) Refills(now quota.Instant, p quota.Params) bool {
	return c.Level > p.Burst/4 && showsFrom*c.tokensIn(now, p, TTL(p)) >= p.Earned(TTL(p))
}

// Rests reports whether a bucket was not touched for the time that kept tokens cover; for half of
// it where its tokens go back with a call that goes anyway.
func (c Credit) Rests(now quota.Instant, p quota.Params, rides bool) bool {
	if rides {
		return now-c.DemandAt >= quota.Instant(TTL(p)/ridesPerTTL)
	}
	return now-c.DemandAt >= quota.Instant(TTL(p)/idlesPerTTL)
}

// Needs is how many of its tokens a node that shares the bucket with others should go on holding:
// none of a bucket that rests, unless it is one token of very many; else those that the demand will
// use soon. A small surplus is not worth a call.
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

// TakeOut takes tokens out of the credit to give them back: all but so many, and of those that are
// about to end all, with how many were used. Tokens without a term stay.
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
		held.tell()
		c.Level += n
		surplus = max(surplus-n, 0)
	}
	if out[0].Tokens+out[1].Tokens > 0 {
		c = c.Reopen(now)
	}
	return c, out
}

// LookAgain is when to look again whether the node needs its tokens; never if it has none that can
// go back. With used it is also to say which were used.
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

// Unspend puts tokens back that Spend has taken. It reports false if they were not of one lease, or
// the control plane has heard meanwhile that they are used.
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
