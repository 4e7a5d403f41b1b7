package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// callFor is the time that a node waits for the answer to a claim before it makes another
	// claim. answeredIn is the age of a claim, from when it was sent, after which its answer is
	// ignored.
	callFor    = 250 * quota.Millisecond
	answeredIn = quota.Second
	// idleFor is the time after which an idle permit goes back if few permits are free. Until then
	// another node can refuse a request, also a request of a class that has reserved places.
	idleFor = 25 * quota.Millisecond
	// shortestPause and longestPause bound the pause after an answer that gave a node less than it
	// needs. During the pause the node does not ask again.
	shortestPause = 25 * quota.Millisecond
	longestPause  = 200 * quota.Millisecond
	// mostSpare bounds the permits that a node wants beyond its load.
	mostSpare = 64
)

// Permits is a node's knowledge of its permits of one bucket. The zero value has no permits.
type Permits struct {
	// Count is the number of requests in flight up to which the node admits more, until Until by
	// its own clock. From Until on it admits none. Requests beyond Count that are already in flight
	// go on.
	Count int64
	Until quota.Instant
	// Seq is the sequence number of the last claim. Sent is the time when it left, 0 once it is
	// answered.
	Seq  uint64
	Sent quota.Instant
	// Need and Hold are fields of the last claim, Free is a field of the last answer.
	Need, Hold, Free int64
	// Recorded is the number of requests that the control plane counts for the node since its last
	// answer.
	Recorded int64
	// Pause is how long the node does not ask again, counted from Sent, because it got less than it
	// needs; 0 if it got enough. Again is when the pause ends, or when the node may ask for more
	// spare permits.
	Pause quota.Span
	Again quota.Instant
	// Doubt is until when the control plane gives no node more permits than the node has, because
	// it has lost its record of who holds them.
	Doubt quota.Instant
	// Used reports whether a request has come since the last claim.
	Used bool
}

// Load is a node's use of a bucket.
type Load struct {
	// Limit is the number of permits over all nodes.
	Limit int64
	// InFlight is the number of requests in flight, with the places that workers hold.
	InFlight int64
	// Waiting is the number of requests that wait for a permit.
	Waiting int64
	// IdleSince is since when permits have been idle while few are free, 0 if none is idle.
	IdleSince quota.Instant
}

// None reports whether the node has never claimed the bucket, or has forgotten it.
func (p *Permits) None() bool { return p.Seq == 0 && !p.Used }

// Room returns how many more requests the node may admit at now, with inFlight requests in flight.
func (p *Permits) Room(now quota.Instant, inFlight int64) int64 {
	if now >= p.Until {
		return 0
	}
	return max(p.Count-inFlight, 0)
}

// Empty reports whether a request at now must not wait for a permit, because there was none a
// moment ago.
func (p *Permits) Empty(now quota.Instant) bool { return p.Pause > 0 && now < p.Again }

// Idle reports whether the node has idle permits that other nodes may need.
func (p *Permits) Idle(now quota.Instant, l Load) bool {
	return p.isScarce(now, l.Limit) && p.Recorded > l.InFlight
}

// isScarce reports whether less than a quarter of the permits is free, as far as the node knows.
// While the control plane is in doubt no node can know this, and a permit that is given back would
// be lost.
func (p *Permits) isScarce(now quota.Instant, limit int64) bool {
	return now < p.Until && p.Free*4 < limit && now >= p.Doubt
}

// wantedSpare returns how many permits a node wants for future requests where there are enough. It
// is enough for its workers to hold some.
func (l *Load) wantedSpare() int64 { return 4 + l.InFlight/2 + min(l.Limit/8, mostSpare) }

// Due returns when the node must make a claim; quota.Forever if it has nothing of the bucket.
func (p *Permits) Due(now quota.Instant, l Load) quota.Instant {
	scarce := p.isScarce(now, l.Limit)
	missing := l.Waiting > 0 && l.InFlight >= p.Count && p.Recorded < l.Limit
	switch {
	case p.isUnused(now, l):
		return quota.Forever
	case p.Sent != 0:
		return p.Sent + quota.Instant(callFor)
	case now >= p.Until:
		return p.Again
	case scarce && p.Recorded > max(l.InFlight, p.Count):
		return now
	case missing && p.Pause == 0:
		return now
	case missing, !scarce && p.Count-l.InFlight < l.wantedSpare()/2 && p.Used && p.Recorded < l.Limit:
		return p.Again
	case p.Idle(now, l):
		return min(l.IdleSince+quota.Instant(idleFor), p.renewAt())
	}
	return p.renewAt()
}

// renewAt returns when the node renews its permits.
func (p *Permits) renewAt() quota.Instant { return p.Until - quota.Instant(TTL)*2/3 }

// isUnused reports whether the node has no permits of the bucket and wants none.
func (p *Permits) isUnused(now quota.Instant, l Load) bool {
	if p.Used || l.InFlight+l.Waiting > 0 {
		return false
	}
	return p.Recorded == 0 && p.Sent == 0 || now >= max(p.Until, p.Sent+quota.Instant(callFor))
}

// Ask makes the claim that is due.
func (p *Permits) Ask(now quota.Instant, l Load) Claim {
	scarce, want := p.isScarce(now, l.Limit), l.wantedSpare()
	keep := min(p.Count, l.Limit) - l.InFlight
	// Choose how many permits to keep for future requests, and how many spare permits to want.
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

// Claim begins a claim of a node that has inFlight requests in flight and keeps up to keep permits
// beside them. The node gives up its other permits before it sends the claim, and ignores the
// answer to an earlier claim. Sequence numbers grow with the clock: a node that has forgotten the
// bucket must not start below a number that it sent before. lent is the number of permits that the
// node still has when the answer arrives.
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

// Lapse ends the permits at now, and a claim that is under way: the node asked for them under a
// higher limit. It admits no request until a new claim is answered. That claim is due at once.
func (p *Permits) Lapse(now quota.Instant) {
	p.Until, p.Sent, p.Again, p.Pause = min(p.Until, now), 0, now, 0
}

// Learn reads the answer to a claim. The permits run from the time when the claim was sent: the
// control plane starts counting later, so the node stops first.
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
