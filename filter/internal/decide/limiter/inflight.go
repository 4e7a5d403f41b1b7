package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	shared "github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// comeAgain is the wait in a refusal for want of a place, because no one can know when a request
// will end.
const comeAgain = quota.Second

// takeInFlight takes a place, in the mode look too: if another bucket refuses the request, the
// place is given back.
func takeInFlight(l *Limiter, req *Request, h *Hit, now quota.Instant, _ mode) ruling {
	seat := &h.seat
	*seat = l.seatOf(req, &h.bound)
	switch h.source {
	case policy.ByShare:
		seat.Beyond = shared.Share(h.limit.Quota, l.leases.Nodes())
	case policy.ByFailureAllow:
		seat.Beyond = inflight.AnyNumber
	}
	// Take a place of this node, if any.
	switch l.flights.Take(seat, now) {
	case inflight.Held:
		return l.noteSeated(req, h)
	case inflight.Contended:
		return contended
	}
	// No place: the control plane may have permits, unless it is away.
	asks := seat.Leased && seat.Beyond == 0
	if asks {
		if _, isAway := l.leases.Health.Away(); isAway {
			return away
		}
	}
	// Wait for a place, or refuse.
	h.Known, h.Remaining, h.Reset = true, 0, 0
	wait := h.limit.MaxWait
	if asks && seat.Asks {
		wait = max(wait, lease.Deadline)
	}
	if wait == 0 {
		return l.refuseFlight(h)
	}
	if asks {
		h.source = policy.ByCentral
	}
	seat.Patient, seat.Until = h.limit.MaxWait > 0, now+quota.Instant(wait)
	return awaits
}

// refuseFlight refuses a hit for want of a place. An empty share does not mean that the limit is
// reached, and neither does a control plane that has lost its records of places.
func (l *Limiter) refuseFlight(h *Hit) ruling {
	if h.source == policy.ByShare || h.seat.Doubt > 0 {
		return h.refuse(policy.ReasonFailure, max(h.seat.Doubt, comeAgain))
	}
	return h.refuse(policy.ReasonInFlight, comeAgain)
}

// seatOf returns the seat for a request's place in flight under a limit.
func (l *Limiter) seatOf(req *Request, b *bound) inflight.Seat {
	ix := &req.rules.Index
	s := inflight.Seat{
		Stream: req.Stream, Trial: req.trial.id(), Key: b.Key,
		Most: b.limit.Quota, Generation: req.generation(&b.Hit), Hold: b.limit.Window,
		Leased: l.leases != nil && b.rule.Mode == policy.ModeLeased, Limit: b.Limit, Version: ix.Version(),
	}
	if !b.Candidate {
		s.Policy = ix.Text(b.rule.Name)
	}
	return s
}

// noteSeated notes that a hit has its place.
func (l *Limiter) noteSeated(req *Request, h *Hit) ruling {
	h.passed = true
	h.Known, h.Remaining, h.Reset = true, h.seat.Room, 0
	req.places = append(req.places, h.seat.Place)
	h.seat.State = inflight.None
	return passes
}

// countLifted counts a request under the limits of requests in flight that operators have lifted,
// whatever their number is: it is still in flight when the limits hold again. Then it notes whether
// the request lasts.
//
//go:noinline
func (l *Limiter) countLifted(req *Request, now quota.Instant) {
	for i := range req.counted {
		seat := &l.seat
		b := req.resolveLimit(&req.counted[i])
		*seat = l.seatOf(req, &b)
		seat.Beyond = inflight.AnyNumber
		if l.flights.Take(seat, now) == inflight.Held {
			req.places = append(req.places, seat.Place)
		}
	}
	req.Lasting = req.lasts()
}

// vacatePlaces frees a request's places from the nth on, and withdraws its seats from the queues. A
// seat that is Held got its place just now: readSeats has not noted it yet.
func (l *Limiter) vacatePlaces(req *Request, n int, now quota.Instant) {
	for i := range req.Hits {
		switch seat := &req.Hits[i].seat; seat.State {
		case inflight.Waiting:
			l.flights.Leave(seat)
		case inflight.Held:
			l.flights.Release(seat.Place, now)
			seat.State = inflight.None
		}
	}
	for _, place := range req.places[n:] {
		l.flights.Release(place, now)
	}
	req.places = req.places[:n]
}
