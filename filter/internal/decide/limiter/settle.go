package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// Answer is the head or the trailers of a response. Header returns the first line of a header, and
// Once its value if it has only one line; ":status" is the status.
type Answer interface {
	Header(name string) []byte
	Once(name string) []byte
}

// reserve notes the tokens that a request has taken from a bucket of this node's own, if its cost
// becomes known later.
func (l *Limiter) reserve(req *Request, h *Hit, taken quota.Reservation) {
	if h.commit == nil || h.Cost == 0 {
		return
	}
	l.addReservation(req, h, &reservation{
		commit: h.commit, key: h.Key, taken: taken, figures: l.store.Figures,
		params: req.rules.Index.Limit(h.Limit).Params, calendar: h.limit.Calendar,
	})
}

// reserveCentral notes the tokens that the control plane has granted to a request whose cost
// becomes known later, or that the request has taken from the share and the control plane has yet
// to charge.
func (l *Limiter) reserveCentral(req *Request, h *Hit, central *leasing.Reservation) {
	if h.commit != nil {
		taken := quota.Reservation{Tokens: h.Cost}
		l.addReservation(req, h, &reservation{commit: h.commit, taken: taken, central: central})
	}
}

// addReservation adds a reservation to the request's reservations and costs.
func (l *Limiter) addReservation(req *Request, h *Hit, r *reservation) {
	r.setUnfinished(h)
	r.cost, r.trailed = len(req.Costs), -1
	req.Costs = append(req.Costs, Cost{Reserved: r.taken.Tokens, Actual: -1})
	req.reserved = append(req.reserved, r)
	l.Stats.Settled.Reserved += uint64(r.taken.Tokens)
}

// setUnfinished sets the request's cost for the case that its response is not whole.
func (r *reservation) setUnfinished(h *Hit) {
	cost := &h.rule.Cost
	r.unfinished = r.commit.IfUnfinished(cost.Kind)
	r.most = r.unfinished.Most(cost.Max, cost.Invalid, h.limit.Params.Burst)
}

// SettleHead settles the reservations whose cost is in the head of the response to a Lasting
// request. The request may no longer be Lasting after it.
func (l *Limiter) SettleHead(req *Request, a Answer, now quota.Instant) {
	kept := req.reserved[:0]
	for _, r := range req.reserved {
		switch r.commit.By {
		case policy.CommitStatus:
			status, _ := policy.ParseStatus(a.Header(":status"))
			l.settleReservation(req, r, r.commit.ByStatus(status), now)
		case policy.CommitHeader:
			actual, known := policy.ParseActual(a.Once(r.commit.Name))
			if !known {
				actual = r.commit.Missing
				l.Stats.Settled.Missing++
			}
			l.settleReservation(req, r, actual, now)
		case policy.CommitGRPCStatus, policy.CommitTrailer:
			if len(a.Header(grpcStatus)) > 0 { // The trailers came in place of a head.
				r.trailed = r.trailerCost(a)
			}
			kept = append(kept, r)
		default:
			kept = append(kept, r)
		}
	}
	req.reserved = kept
	req.Lasting = req.lasts()
}

// grpcStatus is the trailer with the status of a gRPC call.
const grpcStatus = "grpc-status"

// trailerCost returns the request's cost from the trailers; below 0 if they do not contain it.
func (r *reservation) trailerCost(a Answer) int64 {
	switch r.commit.By {
	case policy.CommitGRPCStatus:
		if status, ok := policy.ParseStatus(a.Header(grpcStatus)); ok {
			return r.commit.ByStatus(status)
		}
	case policy.CommitTrailer:
		if actual, known := policy.ParseActual(a.Once(r.commit.Name)); known {
			return actual
		}
	}
	return -1
}

// SettleTrailers settles the reservations whose cost is in the trailers of the response. Only a
// whole response has trailers.
func (l *Limiter) SettleTrailers(req *Request, a Answer, now quota.Instant) {
	kept := req.reserved[:0]
	for _, r := range req.reserved {
		if actual := r.trailerCost(a); actual >= 0 {
			l.settleReservation(req, r, actual, now)
		} else {
			kept = append(kept, r)
		}
	}
	req.reserved = kept
}

// settleAll settles the remaining reservations at the end of a stream. If the response is not
// whole, the cost is not known.
func (l *Limiter) settleAll(req *Request, life Life) {
	for _, r := range req.reserved {
		actual, known := life.costOf(r)
		switch {
		case known:
			l.settleReservation(req, r, actual, life.Ended)
		case life.isWhole():
			l.Stats.Settled.Missing++
			l.settleReservation(req, r, r.commit.Missing, life.Ended)
		default:
			l.settleUnfinished(req, r, &life)
		}
	}
	req.reserved = req.reserved[:0]
}

// settleUnfinished settles a reservation whose response was not whole. The cost is not known, so
// the policy defines it.
func (l *Limiter) settleUnfinished(req *Request, r *reservation, life *Life) {
	because, took := life.ending(), quota.Span(-1)
	if life.Sent > 0 {
		took = quota.Span(life.Ended - life.Sent)
	}
	left := because == ClientGone || because == TimedOut
	l.countKept(because)
	l.settleReservation(req, r, r.commit.ByUnfinished(r.unfinished, r.taken.Tokens, r.most, took, left), life.Ended)
}

// countKept counts a reservation that keeps its first charge.
func (l *Limiter) countKept(because Ending) {
	l.Stats.Settled.Kept++
	l.Stats.Settled.KeptBy[because]++
}

// costOf returns the request's cost from the end of a stream. A gRPC status that Envoy has made is
// not the upstream's status.
func (life *Life) costOf(r *reservation) (actual int64, known bool) {
	if life.Answered == 0 {
		return 0, false
	}
	switch c := r.commit; c.By {
	case policy.CommitDuration:
		known = r.unfinished == policy.UnfinishedElapsed || life.isWhole()
		return c.ByDuration(quota.Span(life.Ended - life.Sent)), known
	case policy.CommitMetadata:
		return c.ByMetadata(life.Properties.Property([]byte(c.Name)))
	}
	return r.trailed, r.trailed >= 0 && life.isWhole()
}

// isWhole reports whether the upstream has answered to the end. The lack of a cost means nothing in
// a response that broke off, or that Envoy made.
func (life *Life) isWhole() bool {
	return life.Answered != 0 && life.Properties != nil &&
		text.Is(life.Properties.Property([]byte(match.DetailsPath)), match.WholeResponse)
}

// refundAll gives back the reservations of a refused request: it has cost nothing.
func (l *Limiter) refundAll(req *Request, now quota.Instant) {
	for _, r := range req.reserved {
		l.settleReservation(req, r, 0, now)
	}
	req.reserved, req.Costs = req.reserved[:0], req.Costs[:0]
}

// settleReservation sets the cost of a reservation to the actual cost of its request. Below 0 the
// cost is not known, and the reservation keeps its first charge.
func (l *Limiter) settleReservation(req *Request, r *reservation, actual int64, now quota.Instant) {
	if actual < 0 {
		return
	}
	if r.central != nil && r.central.Name == 0 && !r.central.Owes() { // A trial's reservation that is not granted yet.
		r.settled, r.actual = true, actual
		return
	}
	// Settle at the control plane, or in this node's own bucket.
	r.setActual(req, actual)
	switch {
	case r.taken.Tokens == actual:
		l.CountSettled(0)
	case r.central != nil:
		r.central.Tally = l
		l.leases.Settle(now, r.central, actual)
	default:
		kind := bucketstore.Local
		if r.figures.Windows.Quota > 0 {
			kind = bucketstore.Window
		}
		s := &l.settling
		*s = settling{r: r, now: now, actual: actual}
		if r.calendar {
			s.ahead = l.Ahead
		}
		l.store.Figures = r.figures
		if err := l.store.Update(kind, r.key, now, s); err != nil {
			l.countKept(EndedOtherwise) // Other workers changed the bucket at every attempt.
			r.setActual(req, -1)
			return
		}
		l.CountSettled(s.back)
	}
}

// setActual sets the actual cost in the request's Costs, if the reservation has an entry there.
func (r *reservation) setActual(req *Request, actual int64) {
	if r.cost != none {
		req.Costs[r.cost].Actual = actual
	}
}

// CountSettled implements leasing.Tally. It counts refunds in whole tokens, and adds the rest to
// the next refund.
func (l *Limiter) CountSettled(back int64) {
	s := &l.Stats.Settled
	s.Settled++
	if back < 0 {
		s.Overspent += uint64(-back / quota.Parts)
		return
	}
	l.refunded += back
	s.Refunded += uint64(l.refunded / quota.Parts)
	l.refunded %= quota.Parts
}
