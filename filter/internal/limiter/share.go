package limiter

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeShare is the step share of on_failure: this node's part of the limit, in a bucket of its own.
func takeShare(l *Limiter, req *Request, h *Hit, now quota.Instant, commit bool) finding {
	whole := req.LimitOf(&h.Hit).Params
	params := lease.Share(whole, l.leases.Nodes())
	if h.Cost > params.Burst && h.Cost <= whole.Burst {
		return h.refuse(Failure, quota.Second)
	}
	return l.takeBucket(req, h, h.share(params), now, commit)
}

// share is which bucket of this node's own decides: one that belongs to this node alone, or its
// share of a central one in a failure.
type share struct {
	params quota.Params
	// of: it is a share of a central bucket. The other fields count only then.
	of bool
	// since is when the failure began.
	since quota.Instant
	// holds is the most that the whole bucket held by what the node knows.
	holds int64
	// empty: a share that was never used starts without a token.
	empty bool
}

// share is this node's share in the failure that the hit is decided in. It starts at what the node
// knows of the bucket, and full if it knows nothing.
func (h *Hit) share(p quota.Params) share {
	s := share{params: p, of: true, since: h.since, holds: p.Burst, empty: h.empty}
	if h.heard {
		s.holds = min(h.holds, p.Burst)
	}
	return s
}

// begin is the state with which a share that was not used yet in this failure goes on, in the
// figures that its bucket is counted in. It is never fuller than it was. A new one never was used
// at all.
func (s *share) begin(p quota.Params, is quota.State, now quota.Instant, isNew bool) quota.State {
	if isNew && s.empty {
		return p.Empty(now)
	}
	is = p.Refill(is, now)
	is.Debt = max(is.Debt, p.UnitsFor(p.Burst-min(s.holds, p.Burst)))
	return is
}
