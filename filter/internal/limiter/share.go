package limiter

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeShare is the step share of on_failure: this node's part of the limit, in a bucket of its own.
// It starts at what the node knows of the bucket, less what it has let through and the control
// plane has not charged, and full if it knows nothing.
func takeShare(l *Limiter, req *Request, h *Hit, now quota.Instant, charging bool) finding {
	whole := req.LimitOf(&h.Hit).Params
	params := lease.Share(whole, l.leases.Nodes())
	if h.Cost > params.Burst && h.Cost <= whole.Burst {
		return h.refuse(policy.ReasonFailure, quota.Second)
	}
	s := nodeBucket{params: params, isShare: true, since: h.since, empty: h.empty}
	s.holds = min(max(h.holdsAtMost(req)-l.leases.Owed(now, h.Key), 0), params.Burst)
	return l.takeBucket(req, h, s, now, charging)
}

// holdsAtMost is the most that the whole bucket holds by what the node knows.
func (h *Hit) holdsAtMost(req *Request) int64 {
	if h.heard {
		return h.holds
	}
	return req.LimitOf(&h.Hit).Params.Burst
}

// nodeBucket is which bucket of this node's own decides: one that belongs to this node alone, or
// its share of a central one in a failure.
type nodeBucket struct {
	params quota.Params
	// isShare: it is a share of a central bucket. The other fields count only then.
	isShare bool
	// since is when the failure began.
	since quota.Instant
	// holds is the most that the whole bucket held by what the node knows.
	holds int64
	// empty: a share that was never used starts without a token.
	empty bool
}

// begin is the state with which a share that was not used yet in this failure goes on, in the
// figures that its bucket is counted in. It is never fuller than it was. A new one never was used
// at all.
func (s *nodeBucket) begin(p quota.Params, is quota.State, now quota.Instant, isNew bool) quota.State {
	if isNew && s.empty {
		return p.Empty(now)
	}
	is = p.Refill(is, now)
	is.Debt = max(is.Debt, p.UnitsFor(p.Burst-min(s.holds, p.Burst)))
	return is
}
