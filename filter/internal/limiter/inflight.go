package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/inflight"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// inFlight decides by how many requests of this node are in flight.
var inFlight = decider{
	source: ByLocal, kind: bucketstore.Local, take: takeInFlight, watch: watchInFlight,
}

// comeAgain is the wait that a refusal for want of a place asks for: nothing says when a request
// will end.
const comeAgain = quota.Second

// takeInFlight takes a place, also where others only look: what a request has taken it gives back
// if another bucket refuses it.
func takeInFlight(l *Limiter, req *Request, h *Hit, now quota.Instant, _ bool) finding {
	seat := &h.seat
	*seat = l.claim(req, &h.Hit)
	switch l.flights.Take(seat, now) {
	case inflight.Held:
		return l.seated(req, h)
	case inflight.Contended:
		return contended
	}
	h.Known, h.Remaining, h.Reset = true, 0, 0
	if wait := req.LimitOf(&h.Hit).MaxWait; wait > 0 {
		seat.Until = now + quota.Instant(wait)
		return awaits
	}
	return h.refuse(InFlight, comeAgain)
}

// claim is a request's claim on a place.
func (l *Limiter) claim(req *Request, m *match.Hit) inflight.Seat {
	limit, ix := req.LimitOf(m), &req.rules.Index
	s := inflight.Seat{
		Stream: req.Stream, Key: m.Key, Most: limit.Quota, Generation: req.generation(m), Hold: limit.Window,
	}
	if !m.Candidate {
		s.Policy = ix.Text(ix.Policy(m.Policy).Name)
	}
	return s
}

// seated notes the place that a hit has.
func (l *Limiter) seated(req *Request, h *Hit) finding {
	h.settled = true
	h.Known, h.Remaining, h.Reset = true, h.seat.Room, 0
	req.places = append(req.places, h.seat.Place)
	return passes
}

// watchInFlight does so for a policy in shadow or a candidate, which never waits. What it has taken
// counts until the request is over, as that of an enforced policy does.
func watchInFlight(l *Limiter, req *Request, m *match.Hit, now quota.Instant, commit bool) view {
	seat := &l.seat
	*seat = l.claim(req, m)
	state := inflight.Full
	if commit {
		state = l.flights.Take(seat, now)
	} else {
		state = l.flights.Look(seat)
	}
	switch state {
	case inflight.Held:
		if commit {
			req.places = append(req.places, seat.Place)
		}
		return allows
	case inflight.Contended:
		return unknown
	}
	return refuses
}

// queue has a request wait for the places that it lacks. It is done if the request now waits, or is
// refused because too many wait.
func (l *Limiter) queue(req *Request, now quota.Instant) (status Status, done bool) {
	waits := false
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.awaits {
			continue
		}
		h.awaits, waits = false, true
		if !l.flights.Wait(&h.seat, h.seat.Until) {
			l.Stats.TooManyWaiting++
			return l.refuse(req, i, InFlight, now), true
		}
	}
	if waits {
		l.hold(req)
	}
	return Paused, waits
}

// hold keeps a request's rules while it waits.
func (l *Limiter) hold(req *Request) {
	if !req.held {
		req.held = true
		req.rules.Held++
	}
}

// seatsTaken takes in how the seats of a request that waited have ended. It returns the hit that
// has none, none if all have.
func (l *Limiter) seatsTaken(req *Request) (without int) {
	without = none
	for i := range req.Hits {
		h := &req.Hits[i]
		if h.settled || !h.isInFlight(req) {
			continue
		}
		switch h.seat.State {
		case inflight.Held:
			h.view = allows
			l.seated(req, h)
		case inflight.Full:
			h.view = refuses
			h.refuse(InFlight, comeAgain)
			without = i
		}
		h.seat.State = inflight.None
	}
	return without
}

func (h *Hit) isInFlight(req *Request) bool { return req.LimitOf(&h.Hit).InFlight }

// vacate gives a request's places back from the n-th on, and its seats in queues.
func (l *Limiter) vacate(req *Request, n int, now quota.Instant) {
	for i := range req.Hits {
		if h := &req.Hits[i]; h.seat.State == inflight.Waiting {
			l.flights.Leave(&h.seat)
		}
	}
	for _, place := range req.places[n:] {
		l.flights.Release(place, now)
	}
	req.places = req.places[:n]
}
