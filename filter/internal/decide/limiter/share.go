package limiter

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeShare applies the step share of on_failure: this node's part of the limit, in a bucket of its
// own. The share starts at the known level of the bucket, less the tokens that this node has used
// and the control plane has not charged. If the node knows nothing, the share starts full, or
// without a token if the policy says so.
func takeShare(l *Limiter, req *Request, h *Hit, now quota.Instant, do mode) ruling {
	whole := h.limit.Params
	params := lease.Share(whole, l.leases.Nodes())
	if h.Cost > params.Burst && h.Cost <= whole.Burst {
		return h.refuse(policy.ReasonFailure, quota.Second)
	}
	s := nodeBucket{params: params, isShare: true, since: h.since, empty: h.empty}
	s.holds = min(max(h.holdsAtMost()-l.leases.Owed(now, h.Key), 0), params.Burst)
	return l.takeBucket(req, h, s, now, do)
}
