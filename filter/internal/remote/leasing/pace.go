package leasing

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// gapsPerTrip is the usual number of a worker's calls under way while enough requests wait.
	gapsPerTrip = 2
	// shortestGap and longestGap bound the time that requests gather. A gap below shortestGap would
	// save hardly any call. longestGap is short compared with a deadline.
	shortestGap = quota.Millisecond
	longestGap  = 5 * quota.Millisecond
	// tripMemory is the number of answers over which the round trip is averaged.
	tripMemory = 8
	// quickTrip is the longest trip of a quick control plane: then nearly all answers come within
	// lease.Soon. slowMemory is the number of answers after which a slow answer is forgotten.
	quickTrip  = lease.Soon * 2 / 5
	slowMemory = 64
)

// pace decides when calls leave. The first call leaves at once. While calls are under way, another
// call leaves one gap after the last. So requests that arrive meanwhile share a call, and a call
// that hangs delays them by a gap at most. A gap is half a round trip: if calls take longer, each
// call carries more, and the number of calls stays the same. The zero value is ready.
type pace struct {
	// trip is the average duration of a call; 0 before the first answer.
	trip quota.Span
	// slow is the duration of the slowest recent call. It falls with each answer.
	slow quota.Span
	// lastSent is when the last call was sent.
	lastSent quota.Instant
}

// gap returns the longest time that requests gather while a call is under way.
func (p *pace) gap() quota.Span {
	return min(max(p.trip/gapsPerTrip, shortestGap), longestGap)
}

// mayLeave reports whether another call may leave. Calls is the number of calls under way, lines
// the number of lines that wait. A full call need not wait.
func (p *pace) mayLeave(now quota.Instant, calls, lines int) bool {
	return calls == 0 || lines >= wire.MaxItems || now >= p.lastSent+quota.Instant(p.gap())
}

// learnTrip learns from an answered call with this round trip.
func (p *pace) learnTrip(trip quota.Span) {
	if p.trip == 0 {
		p.trip = trip
	}
	p.trip += (trip - p.trip) / tripMemory
	p.slow = max(trip, p.slow-p.slow/slowMemory)
}

// isQuick reports whether answers come soon. Before the first answer it reports true.
func (p *pace) isQuick() bool { return p.slow <= quickTrip }
