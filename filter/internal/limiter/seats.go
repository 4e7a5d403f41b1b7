package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// waitForPlaces lets a request wait for the places that it lacks. It returns undecided unless the
// request now waits, or is refused because too many wait.
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
			if l.flights.Crowded(&h.seat) { // That is not the caller's doing.
				reason = policy.ReasonTooManyWaiting
			}
			h.refuse(reason, comeAgain)
			return l.refuse(req, i, reason, now)
		}
	}
	if !waits {
		return undecided
	}
	l.pause(req, now)
	if l.leases != nil {
		l.leases.Claim(now)
	}
	return Paused
}

// readSeats takes in how seats of a request have ended. It returns the index of a hit that gets no
// place, the constant none if there is no such hit.
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
			l.seated(req, h)
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

// fallBackSeat has on_failure decide a hit for whose place the control plane has not answered. An
// answer that is late is no outage: the share would come on top of what others hold by permits.
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
