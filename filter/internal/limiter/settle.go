package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// Answer is the head of the response to a request, or its trailers. Header is the first line of a
// header, Once its value if it has one line alone; ":status" is the status.
type Answer interface {
	Header(name string) []byte
	Once(name string) []byte
}

// reserve notes what a request has taken of a bucket of this node's own, if its cost is known
// later.
func (l *Limiter) reserve(req *Request, h *Hit, taken quota.Reservation) {
	if h.commit == nil || h.Cost == 0 {
		return
	}
	l.note(req, h, &reservation{
		commit: h.commit, key: h.Key, taken: taken, figures: l.store.Figures,
		params: req.rules.Index.Limit(h.Limit).Params, calendar: h.limit.Calendar,
	})
}

// reserveCentral notes what the control plane has granted a request whose cost is known later, or
// what it has taken of the share and the control plane is to charge.
func (l *Limiter) reserveCentral(req *Request, h *Hit, central *leasing.Reservation) {
	if h.commit != nil {
		l.note(req, h, &reservation{commit: h.commit, taken: quota.Reservation{Tokens: h.Cost}, central: central})
	}
}

func (l *Limiter) note(req *Request, h *Hit, r *reservation) {
	r.end(h)
	r.cost, r.trailed = len(req.Costs), -1
	req.Costs = append(req.Costs, Cost{Reserved: r.taken.Tokens, Actual: -1})
	req.reserved = append(req.reserved, r)
	l.Stats.Settled.Reserved += uint64(r.taken.Tokens)
}

// end notes what the request costs if its response is not whole.
func (r *reservation) end(h *Hit) {
	cost := &h.rule.Cost
	r.unfinished = r.commit.IfUnfinished(cost.Kind)
	r.most = r.unfinished.Most(cost.Max, cost.Invalid, h.limit.Params.Burst)
}

// SettleHead settles what the head of the response to a Lasting request decides. The request may
// not be Lasting after it.
func (l *Limiter) SettleHead(req *Request, a Answer, now quota.Instant) {
	kept := req.reserved[:0]
	for _, r := range req.reserved {
		switch r.commit.By {
		case policy.CommitStatus:
			status, _ := policy.ParseCost(a.Header(":status"), 999)
			l.settle(req, r, r.commit.ByStatus(int(status)), now)
		case policy.CommitHeader:
			actual, known := policy.ParseActual(a.Once(r.commit.Name))
			if !known {
				actual = r.commit.Missing
				l.Stats.Settled.Missing++
			}
			l.settle(req, r, actual, now)
		case policy.CommitGRPCStatus, policy.CommitTrailer:
			if len(a.Header(grpcStatus)) > 0 { // Trailers came in place of a head.
				r.trailed = r.trailer(a)
			}
			kept = append(kept, r)
		default:
			kept = append(kept, r)
		}
	}
	req.reserved = kept
	req.Lasting = req.lasts()
}

// grpcStatus is the trailer that has the status of a call by gRPC.
const grpcStatus = "grpc-status"

// trailer is what trailers say that a request has cost; below 0 they do not say.
func (r *reservation) trailer(a Answer) int64 {
	switch r.commit.By {
	case policy.CommitGRPCStatus:
		if status, ok := policy.ParseCost(a.Header(grpcStatus), 999); ok {
			return r.commit.ByStatus(int(status))
		}
	case policy.CommitTrailer:
		if actual, known := policy.ParseActual(a.Once(r.commit.Name)); known {
			return actual
		}
	}
	return -1
}

// SettleTrailers settles what the trailers of the response decide. Only a response that is whole
// has any.
func (l *Limiter) SettleTrailers(req *Request, a Answer, now quota.Instant) {
	kept := req.reserved[:0]
	for _, r := range req.reserved {
		if actual := r.trailer(a); actual >= 0 {
			l.settle(req, r, actual, now)
		} else {
			kept = append(kept, r)
		}
	}
	req.reserved = kept
}

// settleAll settles what the end of a stream decides. What was taken for a request without a whole
// response stays taken: what it has cost is not known.
func (l *Limiter) settleAll(req *Request, life Life) {
	for _, r := range req.reserved {
		actual, known := life.cost(r)
		switch {
		case known:
			l.settle(req, r, actual, life.Ended)
		case life.whole():
			l.Stats.Settled.Missing++
			l.settle(req, r, r.commit.Missing, life.Ended)
		default:
			l.unfinished(req, r, &life)
		}
	}
	req.reserved = req.reserved[:0]
}

// unfinished settles a reservation whose response was not whole. What it has cost is not known, so
// that is what the policy says.
func (l *Limiter) unfinished(req *Request, r *reservation, life *Life) {
	because, took := life.ending(), quota.Span(-1)
	if life.Sent > 0 {
		took = quota.Span(life.Ended - life.Sent)
	}
	left := because == ClientGone || because == TimedOut
	l.leaveCharged(because)
	l.settle(req, r, r.commit.ByUnfinished(r.unfinished, r.taken.Tokens, r.most, took, left), life.Ended)
}

// leaveCharged counts a reservation that stays as it was made.
func (l *Limiter) leaveCharged(because Ending) {
	l.Stats.Settled.Kept++
	l.Stats.Settled.KeptBy[because]++
}

// cost is what the end of a stream says that its request has cost. A status of gRPC that Envoy has
// made up is none of the upstream.
func (life *Life) cost(r *reservation) (actual int64, known bool) {
	if life.Answered == 0 {
		return 0, false
	}
	switch c := r.commit; c.By {
	case policy.CommitDuration:
		known = r.unfinished == policy.UnfinishedElapsed || life.whole()
		return c.ByDuration(quota.Span(life.Ended - life.Sent)), known
	case policy.CommitMetadata:
		return c.ByMetadata(life.Properties.Property([]byte(c.Name)))
	}
	return r.trailed, r.trailed >= 0 && life.whole()
}

// whole reports whether the upstream has answered to the end. A response that breaks off, and one
// that Envoy has made, does not say that there is nothing to say.
func (life *Life) whole() bool {
	return life.Answered != 0 && life.Properties != nil &&
		text.Is(life.Properties.Property([]byte(match.DetailsPath)), match.WholeResponse)
}

// refund gives back what a refused request has taken: it has cost nothing.
func (l *Limiter) refund(req *Request, now quota.Instant) {
	for _, r := range req.reserved {
		l.settle(req, r, 0, now)
	}
	req.reserved, req.Costs = req.reserved[:0], req.Costs[:0]
}

// settle makes a reservation cost what the request has cost. Below 0 that is not known, and the
// reservation stays as it was made.
func (l *Limiter) settle(req *Request, r *reservation, actual int64, now quota.Instant) {
	if actual < 0 {
		return
	}
	if r.central != nil && r.central.Name == 0 && !r.central.Owes() { // A trial's, which is not granted yet.
		r.settled, r.actual = true, actual
		return
	}
	r.show(req, actual)
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
			l.leaveCharged(EndedOtherwise) // Other workers changed the bucket at every attempt.
			r.show(req, -1)
			return
		}
		l.CountSettled(s.back)
	}
}

// show notes what a request was found to cost among its costs, where it is one of them.
func (r *reservation) show(req *Request, actual int64) {
	if r.cost != none {
		req.Costs[r.cost].Actual = actual
	}
}

// CountSettled implements leasing.Tally. What is given back is counted in whole tokens, and the
// rest with the next ones.
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
