package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Need is the need of one request at one bucket of the control plane.
type Need struct {
	Bucket keyhash.Key
	// Limit is the index of the limit among all limits of the policy set Version.
	Limit   uint32
	Version uint64
	Params  quota.Params
	Cost    int64
	// Strict buckets have no tokens on the node: each request asks, unless the bucket is known to
	// be empty.
	Strict    bool
	Algorithm quota.Algorithm
	// Optimistic: the node's account of the bucket takes in the answers of the control plane.
	Optimistic bool
	// ExceptionsRevision, Consumer, Position and Root have the meaning that they have in
	// wire.LeaseItem.
	ExceptionsRevision uint64
	// Quota and Burst are the caller's own figures, 0 if the limit has fixed figures. Params
	// contain them.
	Quota, Burst int64
	// Most are the largest figures that a caller may bring, the zero value if the limit has fixed
	// figures.
	Most     quota.Params
	Consumer keyhash.Key
	Position uint8
	Root     quota.Span
	// Reserves: granted tokens are a reservation, to be settled. The node never refuses such a need
	// without asking, because reserved tokens of other requests may come back at any time.
	Reserves bool
	// Looks: the request takes no tokens. It asks for the wait only.
	Looks bool
	// Beside: other limits decide the request too. Its tokens come separately from tokens to keep,
	// with a term of their own, so that they can go back if another limit refuses the request.
	Beside bool
}

// adoptFigures copies the figures of another need of the same bucket, if callers bring their own
// figures.
func (n *Need) adoptFigures(other *Need) {
	if n.Quota > 0 && other.Quota > 0 {
		n.Params, n.Quota, n.Burst = other.Params, other.Quota, other.Burst
	}
}

// isLeaky reports whether the control plane grants turns in a queue. A turn is for one request: an
// unused turn is no token for the next request.
func (n *Need) isLeaky() bool { return n.Algorithm.Queues() }

// hurries reports whether tokens of its requests should not count as leased for a whole
// lease.Deadline.
func (n *Need) hurries() bool {
	return lease.Hurries(n.Params) && !n.Reserves && !n.Optimistic && !n.isLeaky()
}

// tellsUse reports whether a granted request uses its tokens at once, and the client may report
// that use.
func (n *Need) tellsUse() bool {
	return !n.Beside && !n.Reserves && !n.Optimistic && !n.isLeaky() && !n.Looks
}

// asksLike reports whether one item can ask for both needs of a bucket.
func (n *Need) asksLike(other *Need) bool {
	return n.Cost == other.Cost && n.Optimistic == other.Optimistic && n.Reserves == other.Reserves &&
		n.Looks == other.Looks && n.Beside == other.Beside &&
		n.Quota == other.Quota && n.Burst == other.Burst
}

// timeToEarn returns the time in which the bucket earns tokens.
func (n *Need) timeToEarn(tokens int64) quota.Span {
	return n.Params.ResetAfter(quota.State{Debt: n.Params.UnitsFor(tokens)}, 0)
}

// State is a node's knowledge about a need before it asks.
type State uint8

const (
	// Ready: the node has the tokens.
	Ready State = iota
	// Exhausted: the control plane has no tokens before Until.
	Exhausted
	// Missing: the control plane must be asked.
	Missing
)

// Spend is the change that checks a node's credit for a need. With Charge it takes the need's
// tokens.
type Spend struct {
	Need
	Now    quota.Instant
	Charge bool

	State State
	// Doubt: the need is Exhausted, perhaps because the control plane has lost its counts.
	Doubt bool
	// Until is when an Exhausted need can be asked for again, or when the taken tokens expire. From
	// is the lease of the taken tokens.
	Until quota.Instant
	From  lease.Lease
	// Keep is the number of tokens to ask for beyond this request. With Charge the credit is marked
	// as being asked for.
	Keep int64
	// KeepBy is the latest instant to ask for them.
	KeepBy quota.Instant
	// Spent are used tokens that still count as leased. The next ask reports them.
	Spent [2]lease.Spent
	// Holds is the level of the whole bucket, if Known, when tokens are Missing. Lacks is the time
	// for which the node knows that the bucket has too few tokens. InHand is the number of tokens
	// in hand that can go back.
	Holds  int64
	Known  bool
	Lacks  quota.Span
	InHand int64
	// Level and FullAt are for the client's headers: the tokens left, and when the bucket is full.
	Level  int64
	FullAt quota.Instant
	// KeepCall: some worker of this node is asking for tokens to keep.
	KeepCall bool
}

// callTimeout is the time after which a call without waiting requests counts as unanswered. After
// it another worker may ask for tokens to keep, and the tick sends the unanswered items again.
const callTimeout = 250 * quota.Millisecond

// askAhead is the time before tokens run out at which more are asked for: a round trip and a tick.
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
		s.lookForLevel(c)
		return false
	}
	// Decide by the credit: tokens in hand, a known refusal, or neither.
	until, refused := c.Refused(s.Now, s.Params, s.Cost, s.Algorithm.Windowed())
	available := !s.isLeaky() && c.Available(s.Now) >= s.Cost
	switch {
	case available:
		s.State = Ready
		if !s.Charge {
			s.Level = tokensLeft(c, s.Now, &s.Need)
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
	// Compute the tokens to keep, and mark the credit as being asked for.
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
		if marks { // Other workers ask for no tokens to keep meanwhile.
			c = c.Call(s.Now, s.Now+quota.Instant(callTimeout), s.Params)
		}
		if s.Charge && (marks || !available) && s.mustReportUse(c) { // A call leaves.
			c, s.Spent = c.TakeUsed(s.Now)
			marks = marks || s.Spent != [2]lease.Spent{}
		}
	}
	// Take the tokens.
	if available {
		s.Until = c.Expiry(s.Now)
		c, s.From, _ = c.Spend(s.Now, s.Params, s.Cost)
		s.Level, s.FullAt = tokensLeft(c, s.Now, &s.Need), fullAt(c, s.Now, &s.Need)
	}
	e.Credit = c
	return available || marks
}

// mustReportUse reports whether the control plane must hear of used tokens, because they count as
// leased for longer than their requests. In a fixed window that matters if they may reach into the
// next window, in a token bucket if they stop its refill.
func (s *Spend) mustReportUse(c lease.Credit) bool {
	switch {
	case s.Algorithm.Fixed():
		return s.Now > c.FullAt-2*quota.Instant(lease.TTL(s.Params))
	case s.Algorithm.Windowed():
		return true
	}
	return c.Refills(s.Now, s.Params)
}

// lookForLevel computes the level for a request that takes nothing. Only the control plane knows
// the level of a strict bucket, and of a bucket that it has not answered about. For other buckets
// the level is the last known level, the tokens in hand, and the tokens earned since.
func (s *Spend) lookForLevel(c lease.Credit) {
	s.State = Ready
	if s.lookBack(c); s.Strict || !s.Known {
		s.State = Missing
	}
}

// lookBack sets the known facts about a bucket that the control plane must be asked about.
func (s *Spend) lookBack(c lease.Credit) {
	windowed := s.Algorithm.Windowed()
	s.Holds, s.Known = c.Holds(s.Now, s.Params)
	if s.InHand = 0; !s.Algorithm.Estimates() { // Tokens that cannot go back are of no use later.
		s.InHand = c.Available(s.Now)
	}
	s.Level, _ = c.Left(s.Now, s.Params, windowed)
	s.Lacks = c.Lacks(s.Now, s.Params, min(s.Cost, s.Params.Burst), windowed)
}

// learn is the change that takes in the control plane's answer about a leased or strict bucket.
type learn struct {
	need *Need
	// sent is when the call left: the lease of granted tokens runs from that instant.
	now, sent quota.Instant
	ask       lease.Ask
	grant     lease.Grant
	jitter    int64
	// deadline is the time for which the tokens of requests count as leased.
	deadline quota.Span
	// unused are granted tokens of requests that have ended or that another policy refused.
	unused int64
	// holds: the bucket had the tokens, but gave none of them. late: later calls may have been
	// answered before this one was.
	holds, late bool

	// until is when the node stops refusing such requests; 0 if it refuses none.
	until quota.Instant
	// level is the level after all requests, and fullAt when the bucket is full after them.
	level  int64
	fullAt quota.Instant
	// shownFullAt is the latest fullAt that clients have seen before.
	shownFullAt quota.Instant
	// lapsed is the number of tokens whose leases have ended unused.
	lapsed int64
	// again is when to check again whether the tokens are needed.
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
	// Note the demand, and the answer's level and wait.
	c, grant := e.Credit, l.grant
	if grant.NotBefore != quota.Never { // Tokens to keep are of no use to a request that can never pass.
		c = c.Observe(l.now, p, l.ask.Waiting*l.ask.Cost)
	}
	if l.need.Algorithm.Fixed() {
		grant.FullAfter = sameEnd(c.FullAt, l.now, grant.FullAfter)
	}
	// A late answer does not count tokens again that other requests took since.
	if level, known := c.Holds(l.now, p); l.late && known {
		grant.Level = min(grant.Level, level)
	}
	c = c.Learn(l.now, l.ask, grant, backOff, l.jitter)
	if l.holds && c.NotBefore != c.AskAfter {
		c = c.Reopen(l.now)
	}
	// Put the granted tokens into the credit.
	if l.ask.Keep > 0 {
		c.KeepCall = 0
	}
	unused := lease.Lease{Tokens: l.unused, Expiry: lease.Expiry(l.sent, l.deadline), Term: grant.Term}
	if grant.Keep > 0 {
		unused.Term = 0 // The term is the term of the tokens to keep.
	}
	c = c.Receive(l.now, lease.Lease{Tokens: grant.Keep, Expiry: lease.Expiry(l.sent, lease.TTL(p)), Term: grant.Term})
	c = c.Receive(l.now, unused)
	if l.again = quota.Forever; grant.Keep+l.unused > 0 {
		l.again = c.LookAgain(l.now, p, !l.need.Algorithm.Fixed())
	}
	// Compute the results for the waiting requests.
	l.until, _ = c.Refused(l.now, p, l.ask.Cost, l.need.Algorithm.Windowed())
	l.level, l.fullAt, l.shownFullAt = tokensLeft(c, l.now, l.need), fullAt(c, l.now, l.need), c.ShownFullAt
	e.Credit = c
	return true
}

// levelBefore returns the level and the instant at which the bucket is full, as they were before
// the last tokens were taken. The instant never steps back.
func (l *learn) levelBefore(tokens int64) (level int64, fullAt quota.Instant) {
	if l.need.Algorithm.Windowed() {
		return l.level + tokens, l.fullAt
	}
	return l.level + tokens, max(l.shownFullAt, l.fullAt-quota.Instant(l.need.timeToEarn(tokens)))
}

// tokensLeft returns the tokens left, for the client's headers. If an algorithm takes no tokens
// back, tokens in hand count as used: their lease ends soon.
func tokensLeft(c lease.Credit, now quota.Instant, n *Need) int64 {
	if n.Algorithm.Estimates() {
		return c.Level
	}
	return c.Remaining(now)
}

// fullAt returns when the bucket is full, for the client's headers. Only a token bucket can tell
// how the tokens in hand change it.
func fullAt(c lease.Credit, now quota.Instant, n *Need) quota.Instant {
	if n.Algorithm.Windowed() {
		return c.FullAt
	}
	return c.Full(now, n.Params)
}

// sameEnd returns the time until a fixed window ends. If an earlier answer gave nearly the same
// end, it keeps that end, so that clients always see the same end.
func sameEnd(fullAt, now quota.Instant, fullAfter quota.Span) quota.Span {
	end := now + quota.Instant(fullAfter)
	if fullAt > now && fullAt < end && end-fullAt <= quota.Instant(lease.Deadline) {
		return quota.Span(fullAt - now)
	}
	return fullAfter
}

// giveBack is the change that leaves tokens of a refused request to the next request until they
// expire.
type giveBack struct {
	now    quota.Instant
	params quota.Params
	lent   lease.Lease
	// inHand: the request took the tokens from the tokens in hand, of the lease from.
	inHand bool
	from   lease.Lease
	// again is when to check whether the tokens were needed.
	again quota.Instant
}

// Apply implements bucketstore.Change.
func (g *giveBack) Apply(e *bucketstore.Entry) bool {
	e.Credit.ShownFullAt = e.Credit.Full(g.now, g.params)
	if !g.inHand {
		e.Credit = e.Credit.Receive(g.now, g.lent).Reopen(g.now)
	} else if c, put := e.Credit.Unspend(g.now, g.lent.Tokens, g.from); put { // Otherwise they count as used.
		e.Credit = c
	}
	g.again = e.Credit.LookAgain(g.now, g.params, false)
	return true
}

// fitLimit forgets the knowledge about another limit. Tokens in hand stay valid.
func fitLimit(e *bucketstore.Entry, n *Need) {
	p := n.Params
	mark := uint32(n.Algorithm)<<28 ^ uint32(p.Num)*0x9e3779b1 ^ uint32(p.Den)*0x85ebca6b ^
		uint32(p.Den>>32) ^ uint32(p.Burst)*0xc2b2ae35
	if e.Limit != mark {
		e.Limit = mark
		e.Credit.NotBefore, e.Credit.AskAfter, e.Credit.Short = 0, 0, 0
		e.Credit.FullAt, e.Credit.ShownFullAt = 0, 0
	}
}
