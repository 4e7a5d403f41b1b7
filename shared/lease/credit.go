package lease

import "github.com/weir-proxy/weir/shared/quota"

// Lease is a number of tokens that a node may spend before Expiry on its own monotonic clock. Term
// names the lease when tokens go back; it is 0 for tokens that cannot go back. Used counts the
// spent tokens of the lease that the control plane does not know of.
type Lease struct {
	Tokens, Used int64
	Expiry       quota.Instant
	Term         Term
}

// Credit is a node's tokens of one leased bucket; all its workers share it. The zero value has no
// tokens and no answer, and may ask.
type Credit struct {
	Leases [2]Lease
	// NotBefore is the time until which the control plane has no tokens for a cost of DenyCost or
	// more. Refused says how long a request of a higher cost is refused locally.
	NotBefore quota.Instant
	DenyCost  int64
	// AskAfter is when the back-off for tokens to keep ends. KeepCall is the time until which a
	// call for tokens to keep counts as under way.
	AskAfter, KeepCall quota.Instant
	// Recheck means that other nodes may give tokens back before NotBefore, so a request that needs
	// tokens asks after AskAfter.
	Recheck bool
	// Doubt is the Doubt of the last grant that Tells: the node may refuse because of lost state.
	Doubt bool
	// Short counts short grants, up to maxShort. Full grants of a bucket that is not scarce reduce
	// it. Each short grant doubles the back-off.
	Short uint8
	// Demand is the rate of spending as of DemandAt, in 1/1024 tokens a second, averaged over
	// memory.
	Demand   int64
	DemandAt quota.Instant
	// Level is the number of tokens that the control plane had left at its last answer, without the
	// tokens that nodes hold.
	Level int64
	// FullAt is when the bucket will be full if all tokens that nodes hold are used: the latest
	// instant in any answer of the control plane. ShownFullAt is the latest instant that clients
	// can have seen before that answer.
	FullAt, ShownFullAt quota.Instant
}

const (
	demandScale = 1024
	minMemory   = 500 * quota.Millisecond
	maxDemand   = 1 << 32
	keepPerTTL  = 4 // kept tokens cover a quarter of their life
	// If a bucket has plenty, a node asks for more tokens when 1/aheadOf of its usual tokens is
	// left, which last for a sixteenth of a TTL. It sends the call within a quarter of that time.
	aheadOf        = 8
	patiencePerTTL = 64
	maxPatience    = 50 * quota.Millisecond
	// A bucket is scarce if it holds less than it earns in scarcePerBackOff back-offs. In steady
	// overload each node gets half of its even share of the level once in a back-off, so the level
	// settles at the tokens that are earned in two back-offs.
	scarcePerBackOff = 4
	// lasting is the number of short grants, less the full grants, from which a node rations a
	// scarce bucket. A burst that fits is over before.
	lasting  = 3
	maxShort = 8
	// lagsPerWindow: at most this part of a window passes before a node asks again, if the bucket
	// could have tokens.
	lagsPerWindow = 100
	// shortestRetry is the shortest wait that a refusal names. To ask less often, a node refuses by
	// itself for longer than the control plane said, but for no longer than shortestRetry.
	shortestRetry = quota.Second
)

// Expiry returns until when a node may spend tokens that were granted for span, if it sent the
// request at sent. The margin covers clocks that run at different speeds (0.1 %) and one tick of
// rounding.
func Expiry(sent quota.Instant, span quota.Span) quota.Instant {
	return sent + quota.Instant(span-span/1000-quota.Millisecond)
}

// Available returns the number of unexpired tokens at now.
func (c Credit) Available(now quota.Instant) int64 {
	var n int64
	for _, lease := range c.Leases {
		if now < lease.Expiry {
			n += lease.Tokens
		}
	}
	return n
}

// Expiry returns until when all live tokens may be spent; now if there are none.
func (c Credit) Expiry(now quota.Instant) quota.Instant {
	first := now
	for _, lease := range c.Leases {
		if lease.Tokens > 0 && now < lease.Expiry && (first == now || lease.Expiry < first) {
			first = lease.Expiry
		}
	}
	return first
}

// Spend takes n tokens, first the tokens that expire first. It changes nothing if the credit does
// not hold n tokens. from is the lease that the tokens were taken from, as it is afterwards; the
// zero value if there were two.
func (c Credit) Spend(now quota.Instant, p quota.Params, n int64) (after Credit, from Lease, ok bool) {
	if c.Available(now) < n {
		return c, Lease{}, false
	}
	first := 0
	if c.Leases[1].Expiry < c.Leases[0].Expiry {
		first = 1
	}
	// Take from the lease that ends first, then from the other lease.
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
	c.addDemand(now, p, n)
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

// Receive adds leased tokens. If both places hold live tokens, the new tokens join the lease that
// expires later, with the earlier expiry and term of the two. That may lose tokens, but never keeps
// any for too long. A place without tokens forgets its used tokens: they count for longer.
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
	joined.Term = joined.Term.earlierTerm(lease.Term)
	return c
}

// Holds returns how many tokens the whole bucket holds, as far as the node knows: the level of the
// last answer, less the tokens spent here since, plus the tokens earned since the later of both. It
// reports false before the first answer.
func (c Credit) Holds(now quota.Instant, p quota.Params) (level int64, known bool) {
	if c.FullAt == 0 {
		return 0, false
	}
	return min(c.Level+p.Earned(max(quota.Span(now-c.DemandAt), 0)), p.Burst), true
}

// Call records a call for tokens to keep, which counts as under way until the given instant. If
// tokens are rationed, requests that find none meanwhile are refused and do not ask one by one.
func (c Credit) Call(now, until quota.Instant, p quota.Params) Credit {
	byRation := c.NotBefore != 0 && c.NotBefore == c.AskAfter
	if c.Short >= lasting && byRation && now < c.AskAfter+quota.Instant(BackOff(p)) {
		c.NotBefore, c.DenyCost = now+quota.Instant(Deadline), 1
	}
	c.KeepCall = until
	return c
}

// Learn reads the control plane's answer to ask; Receive adds the tokens themselves. After a short
// grant the node asks no sooner than tokens can be available. While grants stay short it asks later
// and later, up to backOff, which is 0 for buckets whose every request must ask. Jitter, in [0,
// 1024), spreads the nodes' next asks.
//
// A bucket that several nodes share and that stays scarce is rationed. The node asks about once in
// a backOff for the tokens that it needs in that time, spends them, and refuses the other requests
// by itself, although the control plane still holds a few tokens for the other nodes.
func (c Credit) Learn(now quota.Instant, ask Ask, g Grant, backOff quota.Span, jitter int64) Credit {
	c.ShownFullAt = c.Full(now, ask.Params)
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
		c.recheckEarly(now, pause)
	}
	// While the bucket is rationed, refuse locally until the next ask. In a window, other nodes may
	// use the last tokens that come back, so only the control plane can decide.
	if ration && now < c.AskAfter && (g.FullAfter == 0 || ask.Params.Window() <= shortestRetry) {
		c.AskAfter = min(c.AskAfter, now+quota.Instant(shortestRetry))
		if c.DenyCost > 1 || c.NotBefore < c.AskAfter {
			c.NotBefore = c.AskAfter
		}
		c.DenyCost = 1
	}
	return c
}

// recheckEarly makes the node ask before the announced wait is over. That wait counts leased tokens
// that other nodes may give back. The node asks after a pause, then after twice the pause, and so
// on.
func (c *Credit) recheckEarly(now, pause quota.Instant) {
	if again := now + pause<<(max(c.Short, 1)-1); again < c.NotBefore {
		c.AskAfter, c.Recheck = again, true
	}
}

// learnOfWaiting reads the answer to the requests that waited, and when the bucket will be full.
func (c *Credit) learnOfWaiting(now quota.Instant, ask Ask, g Grant, backOff quota.Span) {
	if ask.Keep > 0 && c.NotBefore <= now+quota.Instant(Deadline) {
		c.NotBefore = 0 // Set by Call, or nearly over.
	}
	full := now + fullAfter(ask, g)
	if ask.Reserved != 0 && full+minFullShift(ask, g) < c.FullAt { // Settlements have given something back.
		c.FullAt, c.ShownFullAt = full, 0
	}
	c.FullAt = max(c.FullAt, full)
	switch {
	case g.Waiting < ask.Waiting && g.NotBefore == quota.Never:
		// The bucket is not short of tokens. The cost is too high for it.
	case g.Waiting < ask.Waiting:
		c.Short = min(c.Short+1, maxShort)
		most := min(backOff, shortestRetry)
		if g.FullAfter > 0 { // Unused tokens of a window are lost, so wait less.
			most = min(most, ask.Params.Window()/lagsPerWindow)
		}
		step := max(g.NotBefore, min(g.NotBefore<<(c.Short-1), most))
		c.recordRefusal(now, ask, g, now+quota.Instant(step))
	case ask.Waiting > 0, g.Level >= c.DenyCost && c.NotBefore != c.AskAfter:
		c.NotBefore = 0 // Tokens have come back, or an answer has outrun this one: ask.
	}
}

// fullAfter returns how long the bucket takes until it is full: for windows the time in the answer,
// otherwise the time that follows from the level.
func fullAfter(ask Ask, g Grant) quota.Instant {
	if g.FullAfter > 0 {
		return quota.Instant(g.FullAfter)
	}
	return refillTime(ask.Params, g.Level)
}

// minFullShift returns by how much earlier a bucket of reservations must be full than before, so
// that the difference is real. It is more than the time of an answer, a difference of clocks, and
// the part of a token that the answer rounds away.
func minFullShift(ask Ask, g Grant) quota.Instant {
	by := quota.Instant(Deadline + ask.Params.Window()/500)
	if g.FullAfter == 0 {
		by += refillTime(ask.Params, ask.Params.Burst-1)
	}
	return by
}

// refillTime returns how long a bucket with level tokens takes until it is full.
func refillTime(p quota.Params, level int64) quota.Instant {
	missing := p.Burst - min(max(level, 0), p.Burst)
	return quota.Instant(p.ResetAfter(quota.State{Debt: p.UnitsFor(missing)}, 0))
}

// Remaining returns how many tokens clients of the node can still use, by the last answer.
func (c Credit) Remaining(now quota.Instant) int64 { return c.Level + c.Available(now) }

// Full returns when the bucket will be full if the tokens that this node holds are not used. It
// never steps back through Spend and Learn.
func (c Credit) Full(now quota.Instant, p quota.Params) quota.Instant {
	unused := quota.State{Debt: p.UnitsFor(c.Available(now))}
	return max(c.ShownFullAt, c.FullAt-quota.Instant(p.ResetAfter(unused, 0)))
}

// BackOff returns the longest back-off after short grants: the time that kept tokens cover.
func BackOff(p quota.Params) quota.Span { return TTL(p) / keepPerTTL }

// Keep returns how many tokens the node should ask to hold now (0 for none), when it is about to
// spend cost, and how long that ask may wait for others to share its call. It asks for the demand
// of a quarter TTL, at once, when the tokens left cover less than a round trip and a tick. A cold
// or slow key holds no tokens and asks for each request, as strict does.
//
// If a bucket is more than three quarters full, no node lacks the tokens that this node holds. Then
// it asks for twice the demand, at least one token if that will probably be used in time, and
// before its last tokens are spent. So the next request need not wait, and few calls bring tokens
// for many buckets. Tokens that lapse keep the bucket from filling up, so the threshold is far from
// empty.
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

// Idle returns the instant from which c equals an absent credit.
func (c Credit) Idle() quota.Instant {
	idle := max(c.NotBefore, c.AskAfter)
	for _, lease := range c.Leases {
		if lease.Tokens+lease.Used > 0 {
			idle = max(idle, lease.Expiry)
		}
	}
	return idle
}

// Fill returns percent of n tokens, rounded up: the assumed tokens of an unknown bucket. For a
// burst of 1 it is 1, unless percent is 0.
func Fill(n, percent int64) int64 { return n - n*(100-percent)/100 }

// Share returns a node's part of a limit while the control plane is away: rate and burst divided by
// the number of nodes, with a burst of at least one token.
func Share(p quota.Params, nodes int64) quota.Params {
	nodes = max(min(nodes, maxUnits/p.Den), 1)
	return quota.Params{Num: p.Num, Den: p.Den * nodes, Burst: max(1, p.Burst/nodes)}
}
