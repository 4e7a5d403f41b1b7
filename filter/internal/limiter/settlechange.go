package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// reservation is what a request has taken of one bucket before its cost is known. It needs nothing
// of the policy set, which may be replaced before the response comes.
type reservation struct {
	commit *policy.Commit
	key    keyhash.Key
	taken  quota.Reservation
	// figures are those of a bucket of this node's own, params what a new one counts by. calendar:
	// its windows begin by Unix time.
	figures  bucketstore.Figures
	params   quota.Params
	calendar bool
	// central is what the control plane has granted, without a name until it grants it; nil for a
	// bucket of this node's own.
	central *leasing.Reservation
	// settled: the cost, actual, became known before the control plane granted the reservation.
	settled bool
	actual  int64
	// unfinished is what the request costs if its response is not whole, most the figure for it.
	unfinished policy.Unfinished
	most       int64
	// cost is the index of its Cost among those of the request.
	cost int
	// trailed is what the trailers say that the request has cost, where they came in place of a
	// head; below 0 they said nothing.
	trailed int64
}

// settling is the change that makes a reservation cost what its request has cost.
type settling struct {
	r      *reservation
	now    quota.Instant
	actual int64
	// ahead is by how much the bucket's clock is ahead of now.
	ahead quota.Span
	// back is what was given back in parts of a token, below 0 what was taken.
	back int64
}

// Apply implements bucketstore.Change. Where figures have changed in between, or a clock was set
// back, it is not known what of a reservation still counts: then nothing is given back. Nothing of
// a bucket that is gone can be given back either.
func (s *settling) Apply(e *bucketstore.Entry) bool {
	r, less := s.r, s.actual < s.r.taken.Tokens
	s.back = 0
	if less && e.New {
		return false
	}
	if e.Kind == bucketstore.Window {
		w, h, now := &e.Windows, &e.History, s.now+quota.Instant(s.ahead)
		e.Ahead = s.ahead
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
	if e.New {
		e.Params, e.Limit = r.params, r.figures.Own
		e.State = quota.State{Debt: owed(e.Params, e.Debtor, s.now), Last: s.now}
	}
	if less && e.Params != r.figures.Params {
		return false
	}
	var units int64
	e.State, units = e.Params.Settle(e.State, s.now, r.taken, s.actual)
	s.back = e.Params.PartsOf(units)
	return units != 0
}
