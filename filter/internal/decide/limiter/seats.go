package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// waitForPlaces makes a request wait for its missing places. It returns undecided unless the
// request now waits, or is refused because too many requests wait.
func (l *Limiter) waitForPlaces(req *Request, now quota.Instant) Status {
	waits := false
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.awaits {
			continue
		}
		h.awaits, waits = false, true
		if !l.flights.Wait(&h.seat, h.seat.Until) {
			if req.trial == nil {
				l.Stats.TooManyWaiting++
			}
			reason := policy.ReasonInFlight
			if l.flights.Crowded(&h.seat) { // The caller did not cause that.
				reason = policy.ReasonTooManyWaiting
			}
			h.refuse(reason, comeAgain)
			return l.refuseRequest(req, i, reason, now)
		}
	}
	if !waits {
		return undecided
	}
	l.pauseRequest(req, now)
	if l.leases != nil {
		l.leases.Claim(now)
	}
	return Paused
}

// readSeats reads the outcomes of a request's seats. It returns the index of a hit that gets no
// place, or the constant none.
func (l *Limiter) readSeats(req *Request, now quota.Instant) (without int) {
	without = none
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.passed || !h.limit.InFlight {
			continue
		}
		switch h.seat.State {
		case inflight.Waiting:
			continue
		case inflight.Held:
			h.view = allows
			l.noteSeated(req, h)
		case inflight.Full:
			h.view = refuses
			l.refuseFlight(h)
			without = i
		case inflight.Unanswered:
			if l.fallBackSeat(req, h, now) == refused {
				without = i
			}
		}
		h.seat.State = inflight.None
	}
	return without
}

// fallBackSeat lets on_failure decide a hit whose place the control plane has not answered about. A
// late answer is no outage: this node's share would be added to the permits of other nodes.
func (l *Limiter) fallBackSeat(req *Request, h *Hit, now quota.Instant) ruling {
	since := l.leases.Health.FailingSince(now)
	_, outage := l.leases.Health.Away()
	if !outage && req.trial == nil {
		l.Stats.Unanswered++
	}
	if h.seat.Since != 0 {
		since, outage = min(since, h.seat.Since), true
	}
	l.fallBack(req, h, now, since)
	if h.source == policy.ByShare && !outage {
		h.view = refuses
		return h.refuse(policy.ReasonFailure, comeAgain)
	}
	return fellBack
}
