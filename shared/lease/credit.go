package lease

import "github.com/weir-proxy/weir/shared/quota"

// Lease is tokens that a node may spend before Expiry on its own monotonic clock. Term is that by
// which they go back, 0 for tokens that cannot. Used are those of the term that were spent, as far
// as the control plane does not know.
type Lease struct {
	Tokens, Used int64
	Expiry       quota.Instant
	Term         Term
}

// Credit is what one node holds of one leased bucket; all its workers share it. The zero value
// holds no tokens, knows nothing and may ask.
type Credit struct {
	Leases [2]Lease
	// NotBefore: until then the control plane has no tokens for a cost of DenyCost or more. For how
	// long a dearer request is refused locally, Refused says.
	NotBefore quota.Instant
	DenyCost  int64
	// AskAfter is when the back-off for tokens to keep ends. KeepCall is until when a call for
	// tokens to keep counts as under way.
	AskAfter, KeepCall quota.Instant
	// Recheck: other nodes may have given tokens back before NotBefore, so a request that needs
	// some asks after AskAfter.
	Recheck bool
	// Doubt is that of the last grant that Tells: what the node refuses by it may be what was lost.
	Doubt bool
	// Short counts short grants, up to maxShort, less the full grants since by a bucket that is not
	// scarce. Each doubles the back-off.
	Short uint8
	// Demand is the rate of spending as of DemandAt, in 1/1024 tokens a second, averaged over
	// memory.
	Demand   int64
	DemandAt quota.Instant
	// Level is what the control plane had left at its last answer, without the tokens that nodes
	// hold.
	Level int64
	// FullAt is when the bucket will be full if all tokens that nodes hold are used: the latest
	// instant in any answer of the control plane. `Told` is the latest instant that clients can
	// have seen before that answer.
	FullAt, Told quota.Instant
}

const (
	demandScale = 1024
	minMemory   = 500 * quota.Millisecond
	maxDemand   = 1 << 32
	keepPerTTL  = 4 // kept tokens cover a quarter of their life
	// If a bucket has plenty, a node asks for more when 1/aheadOf of its usual tokens is left,
	// which last for a sixteenth of a TTL, and sends the call within a quarter of that time.
	aheadOf        = 8
	patiencePerTTL = 64
	maxPatience    = 50 * quota.Millisecond
	// scarcePerBackOff: a bucket is scarce if it holds less than it earns in so many back-offs. In
	// steady overload each node gets half of its even share of the level once in a back-off, so the
	// level settles at what is earned in two.
	scarcePerBackOff = 4
	// lasting is how many short grants, less the full ones, make a node ration a scarce bucket. A
	// burst that fits is over before.
	lasting  = 3
	maxShort = 8
	// lagsPerWindow: of a window no more than this part passes before a node asks again that could
	// have tokens.
	lagsPerWindow = 100
	// shortestRetry is the shortest wait that a refusal names. To ask less often a node refuses by
	// itself for longer than the control plane said, but no longer than that.
	shortestRetry = quota.Second
)

// Expiry is until when a node may spend tokens that were granted for span, if it sent the request
// at sent. The margin covers clocks that run at different speeds (0.1 %) and one tick of rounding.
func Expiry(sent quota.Instant, span quota.Span) quota.Instant {
	return sent + quota.Instant(span-span/1000-quota.Millisecond)
}

// Available is the number of unexpired tokens at now.
func (c Credit) Available(now quota.Instant) int64 {
	var n int64
	for _, lease := range c.Leases {
		if now < lease.Expiry {
			n += lease.Tokens
		}
	}
	return n
}

// Expiry is until when every live token may be spent; now if there is none.
func (c Credit) Expiry(now quota.Instant) quota.Instant {
	first := now
	for _, lease := range c.Leases {
		if lease.Tokens > 0 && now < lease.Expiry && (first == now || lease.Expiry < first) {
			first = lease.Expiry
		}
	}
	return first
}

// Spend takes n tokens, first those that expire first. It changes nothing if the credit does not
// hold n. From is what they were taken from as it is then, the zero value if that is not one lease.
func (c Credit) Spend(now quota.Instant, p quota.Params, n int64) (after Credit, from Lease, ok bool) {
	if c.Available(now) < n {
		return c, Lease{}, false
	}
	first := 0
	if c.Leases[1].Expiry < c.Leases[0].Expiry {
		first = 1
	}
	left := n
	for _, i := range [2]int{first, 1 - first} {
		if lease := &c.Leases[i]; now < lease.Expiry {
			take := min(left, lease.Tokens)
			lease.Tokens -= take
			lease.Used += take
			if left -= take; take == n {
				from = *lease
			}
		}
	}
	c.observe(now, p, n)
	return c, from, true
}

// Lapse removes the tokens whose lease has ended unused, and returns their number.
func (c Credit) Lapse(now quota.Instant) (Credit, int64) {
	var n int64
	for i := range c.Leases {
		if lease := &c.Leases[i]; now >= lease.Expiry {
			n += lease.Tokens
			lease.Tokens, lease.Used = 0, 0
		}
	}
	return c, n
}

// Receive adds leased tokens. If both places hold live tokens, the new ones join those that expire
// later, with the earlier expiry and term of the two: tokens may be lost by that, but are never
// kept too long. A place without tokens forgets which were used: these count for longer.
func (c Credit) Receive(now quota.Instant, lease Lease) Credit {
	if lease.Tokens <= 0 || now >= lease.Expiry {
		return c
	}
	for _, used := range [2]bool{false, true} {
		for i, held := range c.Leases {
			if now >= held.Expiry || held.Tokens == 0 && (used || held.Used == 0) {
				c.Leases[i] = lease
				return c
			}
		}
	}
	later := 0
	if c.Leases[1].Expiry > c.Leases[0].Expiry {
		later = 1
	}
	joined := &c.Leases[later]
	joined.Tokens += lease.Tokens
	joined.Expiry = min(joined.Expiry, lease.Expiry)
	joined.Term = joined.Term.earlier(lease.Term)
	return c
}

// Holds is how many tokens the whole bucket holds as far as the node knows: the level of the last
// answer, less what was spent here since, plus what was earned since the later of both. It reports
// false before the first answer.
func (c Credit) Holds(now quota.Instant, p quota.Params) (level int64, known bool) {
	if c.FullAt == 0 {
		return 0, false
	}
	return min(c.Level+p.Earned(max(quota.Span(now-c.DemandAt), 0)), p.Burst), true
}

// Call notes a call for tokens to keep, which counts as under way until the given instant. If
// tokens are rationed, requests that find none meanwhile are refused and do not ask one by one.
func (c Credit) Call(now, until quota.Instant, p quota.Params) Credit {
	byRation := c.NotBefore != 0 && c.NotBefore == c.AskAfter
	if c.Short >= lasting && byRation && now < c.AskAfter+quota.Instant(BackOff(p)) {
		c.NotBefore, c.DenyCost = now+quota.Instant(Deadline), 1
	}
	c.KeepCall = until
	return c
}

// Learn takes the control plane's answer to ask; Receive adds the tokens themselves. After a short
// grant the node asks no sooner than tokens can be available and, while grants stay short, later
// and later up to backOff, which is 0 for buckets whose every request must ask. Jitter, in [0,
// 1024), spreads the nodes' next asks.
//
// A bucket that several nodes share and that stays scarce is rationed: the node asks about once in
// a backOff for what it needs in that time, spends what it gets, and refuses the rest by itself,
// although the control plane still holds a few tokens for the other nodes.
func (c Credit) Learn(now quota.Instant, ask Ask, g Grant, backOff quota.Span, jitter int64) Credit {
	c.Told = c.Full(now, ask.Params)
	c.Level = g.Level
	scarce := g.Level < ask.Params.Earned(scarceFor(ask, g, backOff))
	c.learnOfWaiting(now, ask, g, backOff)
	// Count short grants: learnOfWaiting has counted one to waiting requests.
	switch {
	case g.Waiting < ask.Waiting:
	case !scarce:
		c.Short -= min(c.Short, 1)
	case g.Keep < ask.Keep:
		c.Short = min(c.Short+1, maxShort)
	}
	ration := scarce && c.Short >= lasting && ask.Nodes != 1
	// Wait before the next ask for tokens to keep.
	pause := quota.Instant(backOff/2 + backOff*quota.Span(jitter)/1024)
	switch {
	case ration && ask.Keep > 0, g.Keep < ask.Keep && (scarce || g.Level == 0):
		c.AskAfter = now + pause
	case g.Keep < ask.Keep:
		// Half as long as the granted tokens may last, so that requests need not ask one by one.
		c.AskAfter = now + pause*quota.Instant(g.Keep)/quota.Instant(2*ask.Keep)
	}
	if g.Tells() {
		c.Doubt = g.Doubt
	}
	c.Recheck = false
	if g.Waiting < ask.Waiting && ask.Nodes > 1 && backOff > 0 {
		c.recheck(now, pause)
	}
	// While the bucket is rationed, refuse locally until the next ask. When a window has tokens
	// again whose last ones other nodes may use, only the control plane can say.
	if ration && now < c.AskAfter && (g.FullAfter == 0 || ask.Params.Window() <= shortestRetry) {
		c.AskAfter = min(c.AskAfter, now+quota.Instant(shortestRetry))
		if c.DenyCost > 1 || c.NotBefore < c.AskAfter {
			c.NotBefore = c.AskAfter
		}
		c.DenyCost = 1
	}
	return c
}

// recheck has the node ask before the wait is over that it has heard of: that counts tokens as
// leased which others may give back. It does so after a pause, then after twice as long, and so on.
func (c *Credit) recheck(now, pause quota.Instant) {
	if again := now + pause<<(max(c.Short, 1)-1); again < c.NotBefore {
		c.AskAfter, c.Recheck = again, true
	}
}

// learnOfWaiting takes the answer to the requests that waited, and when the bucket will be full.
func (c *Credit) learnOfWaiting(now quota.Instant, ask Ask, g Grant, backOff quota.Span) {
	if ask.Keep > 0 && c.NotBefore <= now+quota.Instant(Deadline) {
		c.NotBefore = 0 // Set by Call, or nearly over.
	}
	full := now + fullAfter(ask, g)
	if ask.Reserved != 0 && full+sooner(ask, g) < c.FullAt { // Settlements have given something back.
		c.FullAt, c.Told = full, 0
	}
	c.FullAt = max(c.FullAt, full)
	switch {
	case g.Waiting < ask.Waiting && g.NotBefore == quota.Never:
		// The bucket is not short of tokens. The cost is too high for it.
	case g.Waiting < ask.Waiting:
		c.Short = min(c.Short+1, maxShort)
		most := min(backOff, shortestRetry)
		if g.FullAfter > 0 { // What a window does not give now it does not give later.
			most = min(most, ask.Params.Window()/lagsPerWindow)
		}
		step := max(g.NotBefore, min(g.NotBefore<<(c.Short-1), most))
		c.deny(now, ask, g, now+quota.Instant(step))
	case ask.Waiting > 0, g.Level >= c.DenyCost && c.NotBefore != c.AskAfter:
		c.NotBefore = 0 // Tokens have come back, or an answer has outrun this one: ask.
	}
}

// fullAfter is how long the bucket takes until it is full: as the answer says for windows, or by
// the level.
func fullAfter(ask Ask, g Grant) quota.Instant {
	if g.FullAfter > 0 {
		return quota.Instant(g.FullAfter)
	}
	return refill(ask.Params, g.Level)
}

// sooner is by how much earlier a bucket of reservations must be full than was said before, for it
// to be more than the time of an answer, a difference of clocks, and a token of which the answer
// does not say which part has come.
func sooner(ask Ask, g Grant) quota.Instant {
	by := quota.Instant(Deadline + ask.Params.Window()/500)
	if g.FullAfter == 0 {
		by += refill(ask.Params, ask.Params.Burst-1)
	}
	return by
}

// refill is how long a bucket with level tokens takes until it is full.
func refill(p quota.Params, level int64) quota.Instant {
	missing := p.Burst - min(max(level, 0), p.Burst)
	return quota.Instant(p.ResetAfter(quota.State{Debt: p.UnitsFor(missing)}, 0))
}

// Remaining is how many tokens clients of the node can still use, by the last answer.
func (c Credit) Remaining(now quota.Instant) int64 { return c.Level + c.Available(now) }

// Full is when the bucket will be full if the tokens that this node holds are not used. It never
// steps back through Spend and Learn.
func (c Credit) Full(now quota.Instant, p quota.Params) quota.Instant {
	unused := quota.State{Debt: p.UnitsFor(c.Available(now))}
	return max(c.Told, c.FullAt-quota.Instant(p.ResetAfter(unused, 0)))
}

// BackOff is the longest back-off after short grants: the time that kept tokens cover.
func BackOff(p quota.Params) quota.Span { return TTL(p) / keepPerTTL }

// Keep is how many tokens the node should ask to hold now (0 for none), when it is about to spend
// cost, and how long that ask may wait for others to share its call. It is the demand of a quarter
// TTL, at once, when the tokens left cover less than a round trip and a tick. A cold or slow key
// holds no tokens and asks for each request, as strict does.
//
// If a bucket is more than three quarters full, no node lacks the tokens that this one holds. Then
// it asks for twice as much, at least one token if that will probably be used in time, and before
// the last ones are spent: the next request need not wait, and few calls bring tokens for many
// buckets. Tokens that lapse keep the bucket from filling up, so the threshold is far from empty.
func (c Credit) Keep(
	now quota.Instant, p quota.Params, cost int64, roundTrip quota.Span,
) (n int64, patience quota.Span) {
	if TTL(p) == 0 || now < c.KeepCall || now < c.AskAfter {
		return 0, 0
	}
	left, want := c.Available(now), c.tokensIn(now, p, BackOff(p))
	if c.Level > p.Burst-p.Burst/4 {
		want = max(c.tokensIn(now, p, 2*BackOff(p)), min(c.tokensIn(now, p, TTL(p)*3/4), 1))
		spare := (want + aheadOf/2) / aheadOf
		left -= cost + spare
		if spare > 0 {
			patience = min(TTL(p)/patiencePerTTL, maxPatience)
		}
	}
	// Ask when the tokens left would not last until an answer comes.
	if left > c.tokensIn(now, p, roundTrip) {
		return 0, 0
	}
	return min(want, p.Burst), patience
}

// Idle is the instant from which c equals an absent credit.
func (c Credit) Idle() quota.Instant {
	idle := max(c.NotBefore, c.AskAfter)
	for _, lease := range c.Leases {
		if lease.Tokens+lease.Used > 0 {
			idle = max(idle, lease.Expiry)
		}
	}
	return idle
}

// tokensIn is the demand in span at now, without what is being spent now.
func (c Credit) tokensIn(now quota.Instant, p quota.Params, span quota.Span) int64 {
	return c.demandAt(now, p) * int64(span/quota.Millisecond) / (demandScale * 1000)
}

// demandAt decays the demand to now. The hyperbola T/(T+dt) has the right fixed point for steady
// traffic and needs no table. A time in which requests were refused here says nothing about the
// demand, so for a scarce bucket up to a back-off of it is left out. Otherwise a node would ask for
// what it was granted, and not for what it could use.
func (c Credit) demandAt(now quota.Instant, p quota.Params) int64 {
	from := c.DemandAt
	if c.Short >= lasting {
		from = max(from, min(c.NotBefore, from+quota.Instant(BackOff(p))))
	}
	if now <= from {
		return c.Demand
	}
	dt := min(int64(now-from), int64(quota.Hour))
	m := int64(memory(p))
	return c.Demand * m / (m + dt)
}

// memory is the time over which demand is averaged: half a second, or the time that kept tokens
// cover if that is longer. So a node never asks to keep more than it spent in that time. With a
// shorter average, two quick requests to a bucket of 100 an hour would look like a stream and tie
// up eight tokens.
func memory(p quota.Params) quota.Span { return max(minMemory, BackOff(p)) }

// Observe counts n tokens as asked for at now, granted or not.
func (c Credit) Observe(now quota.Instant, p quota.Params, n int64) Credit {
	c.observe(now, p, n)
	return c
}

func (c *Credit) observe(now quota.Instant, p quota.Params, n int64) {
	n = min(n, maxDemand/demandScale)
	c.Demand = min(c.demandAt(now, p)+n*demandScale*int64(quota.Second)/int64(memory(p)), maxDemand)
	c.DemandAt = max(c.DemandAt, now)
}

// Fill is percent of n tokens, rounded up: what an unknown bucket is assumed to hold. For a burst
// of 1 it is 1, unless percent is 0.
func Fill(n, percent int64) int64 { return n - n*(100-percent)/100 }

// Share is a node's part of a limit while the control plane is away: rate and burst divided by the
// number of nodes, with a burst of at least one token.
func Share(p quota.Params, nodes int64) quota.Params {
	nodes = max(min(nodes, maxUnits/p.Den), 1)
	return quota.Params{Num: p.Num, Den: p.Den * nodes, Burst: max(1, p.Burst/nodes)}
}
