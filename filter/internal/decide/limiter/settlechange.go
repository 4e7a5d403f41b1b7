package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// reservation is the number of tokens that a request has taken from one bucket before its cost is
// known. It needs nothing of the policy set, which may be replaced before the response comes.
type reservation struct {
	commit *policy.Commit
	key    keyhash.Key
	taken  quota.Reservation
	// figures are the figures of a bucket of this node's own, and params the figures for a new
	// bucket. calendar: its windows begin by Unix time.
	figures  bucketstore.Figures
	params   quota.Params
	calendar bool
	// central is the control plane's grant, without a name until it is granted; nil for a bucket of
	// this node's own.
	central *leasing.Reservation
	// settled: the actual cost became known before the control plane granted the reservation.
	settled bool
	actual  int64
	// unfinished defines the request's cost if its response is not whole, and most the largest such
	// cost.
	unfinished policy.Unfinished
	most       int64
	// cost is the index of its Cost in the request's Costs, or none.
	cost int
	// trailed is the request's cost from trailers that came in place of a head; below 0 if they did
	// not contain it.
	trailed int64
}

// settling is the change that sets the cost of a reservation to the actual cost of its request.
type settling struct {
	r      *reservation
	now    quota.Instant
	actual int64
	// ahead is the time by which the bucket's clock is ahead of now.
	ahead quota.Span
	// back is the number of parts of a token that were given back; below 0 they were taken.
	back int64
}

// Apply implements bucketstore.Change. If figures have changed since the reservation, or a clock
// was set back, it is not known which part of the reservation still counts: then nothing is given
// back. Nothing is given back to a deleted bucket either.
func (s *settling) Apply(e *bucketstore.Entry) bool {
	r, less := s.r, s.actual < s.r.taken.Tokens
	s.back = 0
	if less && e.New {
		return false
	}
	// A bucket that counts in windows.
	if e.Kind == bucketstore.Window {
		w, h, now := &e.Windows, &e.History, s.now+quota.Instant(s.ahead)
		e.Ahead = s.ahead
		// A new entry starts with the debt that it may have had.
		if e.New {
			*w = r.figures.Windows
			now = max(now, r.taken.At)
			*h = w.Owing(now, max(e.Debtor+quota.Instant(s.ahead), now), e.Owes)
		}
		w.Advance(h, now)
		if less && r.taken.At > h.Last {
			return false
		}
		s.back = w.Settle(h, r.taken, s.actual) * quota.Parts
		return s.back != 0
	}
	// A bucket of tokens.
	if e.New {
		e.Params, e.Limit = r.params, r.figures.Own
		e.State = quota.State{Debt: debtUntil(e.Params, e.Debtor, s.now), Last: s.now}
	}
	if less && e.Params != r.figures.Params {
		return false
	}
	var units int64
	e.State, units = e.Params.Settle(e.State, s.now, r.taken, s.actual)
	s.back = e.Params.PartsOf(units)
	return units != 0
}
