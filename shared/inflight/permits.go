package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// callFor is how long a node waits for the answer to a claim until it makes another one, and
	// answeredIn how long an answer counts after its claim was sent.
	callFor    = 250 * quota.Millisecond
	answeredIn = quota.Second
	// idleFor is how long a permit lies idle until it goes back where few are free. Until then a
	// request at another node can be refused, also one of a class for which places are kept.
	idleFor = 25 * quota.Millisecond
	// shortestPause and longestPause bound how long a node does not ask again after it has got less
	// than it needs.
	shortestPause = 25 * quota.Millisecond
	longestPause  = 200 * quota.Millisecond
	// mostSpare bounds what a node wants beyond what its load shows.
	mostSpare = 64
)

// Permits is what a node knows of its permits of one bucket. The zero value holds none.
type Permits struct {
	// Count is up to how many requests in flight the node admits more, until Until by its own
	// clock. From then on it admits none. More may be in flight: those do not end because of it.
	Count int64
	Until quota.Instant
	// Seq is that of the last claim. Sent is when that left, 0 if it is answered.
	Seq  uint64
	Sent quota.Instant
	// Need and Hold are those of the last claim, Free is what the last answer said.
	Need, Hold, Free int64
	// Recorded is for how many requests the control plane counts the node, by the last answer.
	Recorded int64
	// Pause is how long the node does not ask again, from Sent, because it got less than it needs;
	// 0 if it got that. Again is when the pause ends, or when it may ask for more to spare.
	Pause quota.Span
	Again quota.Instant
	// Doubt is until when the control plane gives no node more than it has, because it has lost who
	// has what.
	Doubt quota.Instant
	// Used: a request has come since the last claim.
	Used bool
}

// Load is what a node does with a bucket.
type Load struct {
	// Limit is how many permits there are over all nodes.
	Limit int64
	// InFlight is how many requests are in flight, with those that workers hold places for.
	InFlight int64
	// Waiting is how many requests wait for a permit.
	Waiting int64
	// IdleSince is since when permits have lain idle where few are free, 0 if none does.
	IdleSince quota.Instant
}

// None reports whether the node has never claimed the bucket, or has forgotten it.
func (p *Permits) None() bool { return p.Seq == 0 && !p.Used }

// Room is how many more requests the node may admit at now, with so many in flight.
func (p *Permits) Room(now quota.Instant, inFlight int64) int64 {
	if now >= p.Until {
		return 0
	}
	return max(p.Count-inFlight, 0)
}

// Empty reports whether a request that needs a permit at now must not wait for one: there was none
// a moment ago.
func (p *Permits) Empty(now quota.Instant) bool { return p.Pause > 0 && now < p.Again }

// Idle reports whether permits lie idle that other nodes may need.
func (p *Permits) Idle(now quota.Instant, l Load) bool {
	return p.scarce(now, l.Limit) && p.Recorded > l.InFlight
}

// scarce reports whether less than a quarter is free, as far as the node knows. While the control
// plane is in doubt no node can know, and what one gave back would be gone.
func (p *Permits) scarce(now quota.Instant, limit int64) bool {
	return now < p.Until && p.Free*4 < limit && now >= p.Doubt
}

// spare is how many permits a node wants for requests to come where there are enough: so many that
// its workers can hold some.
func (l *Load) spare() int64 { return 4 + l.InFlight/2 + min(l.Limit/8, mostSpare) }

// Due is when the node must make a claim; never if it has nothing of the bucket.
func (p *Permits) Due(now quota.Instant, l Load) quota.Instant {
	scarce := p.scarce(now, l.Limit)
	missing := l.Waiting > 0 && l.InFlight >= p.Count && p.Recorded < l.Limit
	switch {
	case p.over(now, l):
		return quota.Forever
	case p.Sent != 0:
		return p.Sent + quota.Instant(callFor)
	case now >= p.Until:
		return p.Again
	case scarce && p.Recorded > max(l.InFlight, p.Count):
		return now
	case missing && p.Pause == 0:
		return now
	case missing, !scarce && p.Count-l.InFlight < l.spare()/2 && p.Used && p.Recorded < l.Limit:
		return p.Again
	case p.Idle(now, l):
		return min(l.IdleSince+quota.Instant(idleFor), p.renewal())
	}
	return p.renewal()
}

// renewal is when the node claims again what it has.
func (p *Permits) renewal() quota.Instant { return p.Until - quota.Instant(TTL)*2/3 }

// over reports whether the node has nothing of the bucket, and wants nothing of it.
func (p *Permits) over(now quota.Instant, l Load) bool {
	if p.Used || l.InFlight+l.Waiting > 0 {
		return false
	}
	return p.Recorded == 0 && p.Sent == 0 || now >= max(p.Until, p.Sent+quota.Instant(callFor))
}

// Ask makes the claim that is due.
func (p *Permits) Ask(now quota.Instant, l Load) Claim {
	scarce, want := p.scarce(now, l.Limit), l.spare()
	keep := min(p.Count, l.Limit) - l.InFlight
	switch {
	case now < p.Doubt: // It keeps all.
	case l.InFlight == 0 && l.Waiting == 0 && !p.Used:
		keep, want = 0, 0
	case !scarce:
		keep = min(keep, 2*want)
	case l.IdleSince == 0 || now >= l.IdleSince+quota.Instant(idleFor):
		keep, want = 0, 0
	default:
		want = 0
	}
	c := Claim{Need: max(l.Waiting, 0), Spare: max(want-max(keep, 0), 0), Limit: l.Limit}
	c.Seq, c.Hold, c.Lent = p.Claim(now, l.InFlight, keep)
	p.Need, p.Hold, p.Used = c.Need, c.Hold, false
	return c
}

// Claim begins a claim of a node with so many requests in flight, which wants to keep so many of
// its permits beside. It gives up the others before it says so, and an answer to an earlier claim
// does not count any more. The numbers grow with the clock: a node that has forgotten the bucket
// must not begin below what it said before. Lent are the permits that it will surely have when the
// answer comes.
func (p *Permits) Claim(now quota.Instant, inFlight, keep int64) (seq uint64, hold, lent int64) {
	if now >= p.Until {
		p.Count = 0
	}
	p.Count = min(p.Count, inFlight+max(keep, 0))
	p.Seq = max(p.Seq+1, uint64(max(now, 0)))
	p.Sent = now
	if now+quota.Instant(answeredIn) < p.Until {
		lent = p.Count
	}
	return p.Seq, max(p.Count, inFlight), lent
}

// Lapse ends the permits, and a claim that is under way, at now: they were asked for under a higher
// limit. The node admits none until a new claim is answered, which is due at once.
func (p *Permits) Lapse(now quota.Instant) {
	p.Until, p.Sent, p.Again, p.Pause = min(p.Until, now), 0, now, 0
}

// Learn takes in the answer to a claim. Permits run from when it was sent: the control plane counts
// from later.
func (p *Permits) Learn(now quota.Instant, seq uint64, a Answer) {
	if seq != p.Seq || p.Sent == 0 || a.For == 0 || now-p.Sent > quota.Instant(answeredIn) {
		return
	}
	p.Count, p.Free, p.Recorded = a.Permits, a.Free, max(a.Permits, p.Hold)
	p.Again = p.Sent + quota.Instant(shortestPause)
	switch {
	case p.Need == 0 || a.Permits >= p.Hold+p.Need:
		p.Pause = 0
	default:
		p.Pause = min(max(2*p.Pause, shortestPause), longestPause)
		p.Again = p.Sent + quota.Instant(p.Pause)
	}
	p.Until, p.Sent, p.Doubt = p.Sent+quota.Instant(a.For), 0, 0
	if a.Doubt > 0 {
		p.Doubt = now + quota.Instant(a.Doubt)
	}
}
