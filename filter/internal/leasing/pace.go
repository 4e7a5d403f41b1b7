package leasing

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// gapsPerTrip is how many calls of a worker are usually under way when there is enough to ask.
	gapsPerTrip = 2
	// shortestGap and longestGap bound how long requests gather. What leaves sooner than the first
	// would save no call worth the name; the second is little beside a deadline.
	shortestGap = quota.Millisecond
	longestGap  = 5 * quota.Millisecond
	// tripMemory is over how many answers the round trip is averaged.
	tripMemory = 8
	// quickTrip: where no answer takes longer, nearly all come within lease.Soon. Over slowMemory
	// answers a slow one is forgotten.
	quickTrip  = lease.Soon * 2 / 5
	slowMemory = 64
)

// pace is when calls leave: the first at once, further ones while it is under way a gap after the
// last. So requests that come meanwhile share a call, and a call that hangs holds them for no
// longer than a gap. A gap is half a round trip: if calls take longer, each carries more, and there
// are no more of them. The zero value is ready.
type pace struct {
	// trip is how long calls take, on average; 0 before the first answer.
	trip quota.Span
	// slow is how long the slowest of them took, less and less the longer ago it was.
	slow quota.Span
	// lastSent is when the last call was sent.
	lastSent quota.Instant
}

// gap is how long requests gather at most while a call is under way.
func (p *pace) gap() quota.Span {
	return min(max(p.trip/gapsPerTrip, shortestGap), longestGap)
}

// due reports whether a call may leave, of which so many are under way and for which so many lines
// wait. A full call has nothing to wait for.
func (p *pace) due(now quota.Instant, calls, lines int) bool {
	return calls == 0 || lines >= wire.MaxItems || now >= p.lastSent+quota.Instant(p.gap())
}

// answered learns from a call that took so long.
func (p *pace) answered(trip quota.Span) {
	if p.trip == 0 {
		p.trip = trip
	}
	p.trip += (trip - p.trip) / tripMemory
	p.slow = max(trip, p.slow-p.slow/slowMemory)
}

// quick reports whether answers come soon, as is assumed before the first one.
func (p *pace) quick() bool { return p.slow <= quickTrip }
