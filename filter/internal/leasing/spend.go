package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Need is what one request needs of one bucket that the control plane keeps.
type Need struct {
	Bucket keyhash.Key
	// Limit is the index of the limit among all limits of the policy set Version.
	Limit   uint32
	Version uint64
	Params  quota.Params
	Cost    int64
	// Strict buckets hold nothing on the node: each request asks, unless the bucket is known to be
	// empty.
	Strict    bool
	Algorithm quota.Algorithm
	// Optimistic: the control plane decides in this node's place, and its answer goes into the
	// account.
	Optimistic bool
	// ExceptionsRevision, Consumer, Position and Root are those of a wire.LeaseItem.
	ExceptionsRevision uint64
	// Quota and Burst are the caller's own figures, 0 where the limit takes none. Params follow.
	Quota, Burst int64
	// Most are the largest figures that a caller may bring, the zero value where the limit takes
	// none.
	Most     quota.Params
	Consumer keyhash.Key
	Position uint8
	Root     quota.Span
	// Reserves: what is granted is a reservation, to be settled. The node refuses nothing
	// without asking, because what others have reserved may come back at any time.
	Reserves bool
	// Looks: the request takes nothing. It asks how long it would wait.
	Looks bool
	// Beside: other limits decide the request, too. Tokens for it come alone, with a term of their
	// own, so that they go back if another limit refuses it.
	Beside bool
}

// adopt takes over the figures of another need of the same bucket, where callers bring their own.
func (n *Need) adopt(other *Need) {
	if n.Quota > 0 && other.Quota > 0 {
		n.Params, n.Quota, n.Burst = other.Params, other.Quota, other.Burst
	}
}

// leaky reports whether what the control plane grants is a turn in a queue, which holds for one
// request alone: what a request leaves of it is no token for the next.
func (n *Need) leaky() bool { return n.Algorithm.Queues() }

// hurries reports whether tokens of its requests should not count as leased for a whole deadline.
func (n *Need) hurries() bool {
	return lease.Hurries(n.Params) && !n.Reserves && !n.Optimistic && !n.leaky()
}

// tellsUse reports whether what the control plane grants is used at once, and it may hear of that.
func (n *Need) tellsUse() bool {
	return !n.Beside && !n.Reserves && !n.Optimistic && !n.leaky() && !n.Looks
}

// asksLike reports whether one item can ask for two needs of a bucket.
func (n *Need) asksLike(other *Need) bool {
	return n.Cost == other.Cost && n.Optimistic == other.Optimistic && n.Reserves == other.Reserves &&
		n.Looks == other.Looks && n.Beside == other.Beside &&
		n.Quota == other.Quota && n.Burst == other.Burst
}

// earning is how long the bucket takes to earn tokens.
func (n *Need) earning(tokens int64) quota.Span {
	return n.Params.ResetAfter(quota.State{Debt: n.Params.UnitsFor(tokens)}, 0)
}

// State is what a node knows about a need without asking.
type State uint8

const (
	// Ready: the node holds the tokens.
	Ready State = iota
	// Exhausted: the control plane has none before Until.
	Exhausted
	// Missing: the control plane must be asked.
	Missing
)

// Spend is the change that looks at a node's credit for a need, and with Charge takes its tokens.
type Spend struct {
	Need
	Now    quota.Instant
	Charge bool

	State State
	// Doubt: the need is Exhausted, maybe by what the control plane has lost.
	Doubt bool
	// Until is until when the need is Exhausted, or when tokens that were taken must be used. From
	// is what they were taken from.
	Until quota.Instant
	From  lease.Lease
	// Keep is how many tokens to ask for beyond this request. With Charge the credit is
	// marked as being asked for.
	Keep int64
	// KeepBy is when to ask for them at the latest.
	KeepBy quota.Instant
	// Spent are tokens that were used and count as leased still: that ask says so.
	Spent [2]lease.Spent
	// Holds is what the node knows the whole bucket to hold, if Known, where tokens are Missing;
	// Lacks is for how long it knows that they are too few. InHand are those that it holds itself,
	// and that can go back.
	Holds  int64
	Known  bool
	Lacks  quota.Span
	InHand int64
	// Level and FullAt are for the client: what is left, and when all is back.
	Level  int64
	FullAt quota.Instant
	// KeepCall: some worker of this node is asking for tokens to keep.
	KeepCall bool
}

// callTimeout is after how long a call counts as one without an answer if no request waits in it.
// Another worker may ask for tokens to keep as soon, and the tick tries again what a call without
// an answer has left.
const callTimeout = 250 * quota.Millisecond

// askAhead is how early to ask for more: a round trip and a tick.
const askAhead = 25 * quota.Millisecond

// Apply implements bucketstore.Change.
func (s *Spend) Apply(e *bucketstore.Entry) bool {
	fitLimit(e, &s.Need)
	c := e.Credit
	// Another worker may have been faster than the attempt before.
	s.Spent, s.From = [2]lease.Spent{}, lease.Lease{}
	s.Keep, s.KeepCall, s.Lacks = 0, s.Now < c.KeepCall, 0
	s.FullAt = fullAt(c, s.Now, &s.Need)
	if s.Cost == 0 {
		s.look(c)
		return false
	}
	until, refused := c.Refused(s.Now, s.Params, s.Cost, s.Algorithm.Windowed())
	available := !s.leaky() && c.Available(s.Now) >= s.Cost
	switch {
	case available:
		s.State = Ready
		if !s.Charge {
			s.Level = left(c, s.Now, &s.Need)
			return false
		}
	case refused && !s.Reserves:
		s.State, s.Until, s.Doubt = Exhausted, until, c.Doubt
		s.Level, s.Known = c.Left(s.Now, s.Params, s.Algorithm.Windowed())
		return false
	default:
		s.State = Missing
		s.lookBack(c)
	}
	marks := false
	if !s.Strict {
		cost := s.Cost
		if !available {
			cost = 0
		}
		var patience quota.Span
		s.Keep, patience = c.Keep(s.Now, s.Params, cost, askAhead)
		s.KeepBy = s.Now + quota.Instant(patience)
		marks = s.Keep > 0 && s.Charge
		if marks { // Other workers ask for none meanwhile.
			c = c.Call(s.Now, s.Now+quota.Instant(callTimeout), s.Params)
		}
		if s.Charge && (marks || !available) && s.tells(c) { // A call leaves.
			c, s.Spent = c.TakeUsed(s.Now)
			marks = marks || s.Spent != [2]lease.Spent{}
		}
	}
	if available {
		s.Until = c.Expiry(s.Now)
		c, s.From, _ = c.Spend(s.Now, s.Params, s.Cost)
		s.Level, s.FullAt = left(c, s.Now, &s.Need), fullAt(c, s.Now, &s.Need)
	}
	e.Credit = c
	return available || marks
}

// tells reports whether the control plane must hear which tokens were used, because they count
// longer than if each had been asked for: in a fixed window if they may reach into the next, in a
// bucket of tokens if they keep it from refilling.
func (s *Spend) tells(c lease.Credit) bool {
	switch {
	case s.Algorithm.Fixed():
		return s.Now > c.FullAt-2*quota.Instant(lease.TTL(s.Params))
	case s.Algorithm.Windowed():
		return true
	}
	return c.Refills(s.Now, s.Params)
}

// look finds out what is left for a request that takes nothing. Only the control plane can say that
// for a strict bucket, and for one that it has said nothing about. For others it is what was left,
// what is in hand, and what has come back since.
func (s *Spend) look(c lease.Credit) {
	s.State = Ready
	if s.lookBack(c); s.Strict || !s.Known {
		s.State = Missing
	}
}

// lookBack notes what is known of a bucket that the control plane must be asked about.
func (s *Spend) lookBack(c lease.Credit) {
	windowed := s.Algorithm.Windowed()
	s.Holds, s.Known = c.Holds(s.Now, s.Params)
	if s.InHand = 0; !s.Algorithm.Estimates() { // What does not go back is of no use later.
		s.InHand = c.Available(s.Now)
	}
	s.Level, _ = c.Left(s.Now, s.Params, windowed)
	s.Lacks = c.Lacks(s.Now, s.Params, min(s.Cost, s.Params.Burst), windowed)
}

// learn is the change that takes in the control plane's answer about a leased or strict bucket.
type learn struct {
	need *Need
	// sent is when the call left: granted tokens expire by it.
	now, sent quota.Instant
	ask       lease.Ask
	grant     lease.Grant
	jitter    int64
	// deadline is for how long the tokens of requests count as leased.
	deadline quota.Span
	// unused are tokens of waiting requests that are gone or were refused for another policy's
	// sake.
	unused int64
	// holds: the bucket holds what was asked for, and gives none of it. late: later calls may have
	// been answered before.
	holds, late bool

	// until is until when the node refuses a further such request, 0 if it does not.
	until quota.Instant
	// level is what is left after all of the requests, and fullAt when the bucket is full after
	// them.
	level  int64
	fullAt quota.Instant
	// shownFullAt is the latest such instant that clients have seen before.
	shownFullAt quota.Instant
	// lapsed are the tokens of leases that have ended unused.
	lapsed int64
	// again is when to look whether what came is needed.
	again quota.Instant
}

// Apply implements bucketstore.Change.
func (l *learn) Apply(e *bucketstore.Entry) bool {
	p := l.need.Params
	fitLimit(e, l.need)
	e.Credit, l.lapsed = e.Credit.Lapse(l.now)
	backOff := lease.BackOff(p)
	if l.need.Strict {
		backOff = 0
	}
	c, grant := e.Credit, l.grant
	if grant.NotBefore != quota.Never { // Tokens to keep serve no request that can never pass.
		c = c.Observe(l.now, p, l.ask.Waiting*l.ask.Cost)
	}
	if l.need.Algorithm.Fixed() {
		grant.FullAfter = sameEnd(c.FullAt, l.now, grant.FullAfter)
	}
	if level, known := c.Holds(l.now, p); l.late && known { // What others took since is not there again.
		grant.Level = min(grant.Level, level)
	}
	c = c.Learn(l.now, l.ask, grant, backOff, l.jitter)
	if l.holds && c.NotBefore != c.AskAfter {
		c = c.Reopen(l.now)
	}
	if l.ask.Keep > 0 {
		c.KeepCall = 0
	}
	unused := lease.Lease{Tokens: l.unused, Expiry: lease.Expiry(l.sent, l.deadline), Term: grant.Term}
	if grant.Keep > 0 {
		unused.Term = 0 // It is that of the tokens to keep.
	}
	c = c.Receive(l.now, lease.Lease{Tokens: grant.Keep, Expiry: lease.Expiry(l.sent, lease.TTL(p)), Term: grant.Term})
	c = c.Receive(l.now, unused)
	if l.again = quota.Forever; grant.Keep+l.unused > 0 {
		l.again = c.LookAgain(l.now, p, !l.need.Algorithm.Fixed())
	}
	l.until, _ = c.Refused(l.now, p, l.ask.Cost, l.need.Algorithm.Windowed())
	l.level, l.fullAt, l.shownFullAt = left(c, l.now, l.need), fullAt(c, l.now, l.need), c.Told
	e.Credit = c
	return true
}

// before is what the bucket holds and when it is full before the last tokens are taken of it. That
// time never steps back.
func (l *learn) before(tokens int64) (level int64, fullAt quota.Instant) {
	if l.need.Algorithm.Windowed() {
		return l.level + tokens, l.fullAt
	}
	return l.level + tokens, max(l.shownFullAt, l.fullAt-quota.Instant(l.need.earning(tokens)))
}

// left is what is left for clients. Tokens in hand of an algorithm that takes none back are as good
// as used: they end a moment later.
func left(c lease.Credit, now quota.Instant, n *Need) int64 {
	if n.Algorithm.Estimates() {
		return c.Level
	}
	return c.Remaining(now)
}

// fullAt is when the bucket is full, for clients. What tokens in hand would take to come again is
// known of a bucket of tokens alone.
func fullAt(c lease.Credit, now quota.Instant, n *Need) quota.Instant {
	if n.Algorithm.Windowed() {
		return c.FullAt
	}
	return c.Full(now, n.Params)
}

// sameEnd is how long a fixed window goes on: as long as an answer has said before, if this one
// says so but for the time that answers take on their way. So clients hear of one end.
func sameEnd(fullAt, now quota.Instant, fullAfter quota.Span) quota.Span {
	end := now + quota.Instant(fullAfter)
	if fullAt > now && fullAt < end && end-fullAt <= quota.Instant(lease.Deadline) {
		return quota.Span(fullAt - now)
	}
	return fullAfter
}

// giveBack is the change that leaves tokens of a refused request to the next one, until their
// expiry.
type giveBack struct {
	now    quota.Instant
	params quota.Params
	lent   lease.Lease
	// inHand: the request had taken them of those in hand, from a lease.
	inHand bool
	from   lease.Lease
	// again is when to look whether they were needed.
	again quota.Instant
}

// Apply implements bucketstore.Change.
func (g *giveBack) Apply(e *bucketstore.Entry) bool {
	e.Credit.Told = e.Credit.Full(g.now, g.params)
	if !g.inHand {
		e.Credit = e.Credit.Receive(g.now, g.lent).Reopen(g.now)
	} else if c, put := e.Credit.Unspend(g.now, g.lent.Tokens, g.from); put { // Else they count as used.
		e.Credit = c
	}
	g.again = e.Credit.LookAgain(g.now, g.params, false)
	return true
}

// fitLimit forgets what was known about another limit; tokens in hand stay good.
func fitLimit(e *bucketstore.Entry, n *Need) {
	p := n.Params
	mark := uint32(n.Algorithm)<<28 ^ uint32(p.Num)*0x9e3779b1 ^ uint32(p.Den)*0x85ebca6b ^
		uint32(p.Den>>32) ^ uint32(p.Burst)*0xc2b2ae35
	if e.Limit != mark {
		e.Limit = mark
		e.Credit.NotBefore, e.Credit.AskAfter, e.Credit.Short = 0, 0, 0
		e.Credit.FullAt, e.Credit.Told = 0, 0
	}
}
