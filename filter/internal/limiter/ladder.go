package limiter

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// decides is what decides a hit on each step of the failure ladder.
var decides = [policy.Steps]by{policy.StepShare: byShare, policy.StepAllow: byAllow, policy.StepDeny: byDeny}

// climb takes a hit whose tokens cannot be had from the centre, which fails since an instant, to its policy's step of the ladder.
func (l *Limiter) climb(req *Request, i int, now, since quota.Instant) {
	h := &req.Hits[i]
	on := req.policyOf(h.Hit).OnFailure.At(max(quota.Span(now-since), 0))
	step := on.Do
	h.empty = on.Empty
	h.settled, h.Known, h.by, h.since = false, false, decides[step], since
	req.rules.Steps.Note(h.Policy, step)
}

// withoutAsking has the node's share decide hits for which the control plane cannot be asked in time. Where the policy would let all
// through at once it is the share, too: otherwise overload would be a way around the limit.
func (l *Limiter) withoutAsking(req *Request, now quota.Instant) {
	for i := range req.Hits {
		if h := &req.Hits[i]; h.by == byTicket && !h.settled {
			h.Known, h.by, h.since = false, byShare, now
			if req.policyOf(h.Hit).OnFailure.At(0).Do == policy.StepDeny {
				h.by = byDeny
			}
		}
	}
}
