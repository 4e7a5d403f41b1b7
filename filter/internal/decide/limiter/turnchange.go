package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/delay"
	"github.com/weir-proxy/weir/shared/quota"
)

// full is the change that only computes when a bucket will be full.
type full struct{ now, at quota.Instant }

// Apply implements bucketstore.Change.
func (f *full) Apply(e *bucketstore.Entry) bool {
	if e.Kind == bucketstore.Leased {
		f.at = max(e.Credit.FullAt, e.Credit.ShownFullAt)
	} else {
		f.at = f.now + quota.Instant(e.Params.ResetAfter(e.State, f.now))
	}
	return false
}

// releaseTurn is the change that takes a turn back if it is the last turn of its bucket.
type releaseTurn struct {
	turn delay.Turn
	now  quota.Instant
	done bool
}

// Apply implements bucketstore.Change.
func (r *releaseTurn) Apply(e *bucketstore.Entry) bool {
	p := r.turn.Params
	r.done = !e.New && e.Params == p && p.Refill(e.State, r.now) == p.Refill(r.turn.After, r.now)
	if r.done {
		e.State = p.Refill(e.State, r.now)
		e.State.Debt = max(0, e.State.Debt-p.UnitsFor(r.turn.Cost))
	}
	return r.done
}
