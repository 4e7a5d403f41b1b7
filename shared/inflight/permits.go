package inflight

import "github.com/weir-proxy/weir/shared/quota"

// callFor is how long a node waits for the answer to a claim until it makes another one.
const callFor = 250 * quota.Millisecond

// answeredIn is how long an answer counts after its claim was sent.
const answeredIn = quota.Second

// Permits is what a node knows of its permits of one bucket. The zero value holds none.
type Permits struct {
	// Count is up to how many requests in flight the node admits more, until Until by its own
	// clock. From then on it admits none. More may be in flight: those do not end because of it.
	Count int64
	Until quota.Instant
	// Seq is that of the last claim. Sent is when that left, 0 if it is answered.
	Seq  uint64
	Sent quota.Instant
}

// Room is how many more requests the node may admit at now, with so many in flight.
func (p *Permits) Room(now quota.Instant, inFlight int64) int64 {
	if now >= p.Until {
		return 0
	}
	return max(p.Count-inFlight, 0)
}

// Claim begins a claim of a node with so many requests in flight, which wants to keep so many of
// its permits beside. It gives up the others before it says so, and an answer to an earlier claim
// does not count any more. Lent are the permits that it will surely have when the answer comes.
func (p *Permits) Claim(now quota.Instant, inFlight, keep int64) (seq uint64, hold, lent int64) {
	if now >= p.Until {
		p.Count = 0
	}
	p.Count = min(p.Count, inFlight+max(keep, 0))
	if p.Seq == 0 { // A node that has forgotten the bucket must not begin below what it said before.
		p.Seq = uint64(now)
	}
	p.Seq++
	p.Sent = now
	if now+quota.Instant(answeredIn) < p.Until {
		lent = p.Count
	}
	return p.Seq, max(p.Count, inFlight), lent
}

// Learn takes in the answer to a claim. Permits run from when it was sent: the control plane counts
// from later.
func (p *Permits) Learn(now quota.Instant, seq uint64, a Answer) {
	if seq != p.Seq || p.Sent == 0 || a.For == 0 || now-p.Sent > quota.Instant(answeredIn) {
		return
	}
	p.Count, p.Until, p.Sent = a.Permits, p.Sent+quota.Instant(a.For), 0
}

// Due is when the node must claim again although nothing has changed.
func (p *Permits) Due() quota.Instant {
	if p.Sent != 0 {
		return p.Sent + quota.Instant(callFor)
	}
	return p.Until - quota.Instant(TTL)*2/3
}
