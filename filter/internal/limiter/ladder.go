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
	req.rules.Steps.note(h.Policy, step)
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

// Steps are the steps of the failure ladder that requests of each policy were last decided on. The zero value has room for no
// policy.
type Steps struct {
	// At is by policy: StepGround for one that no request has taken to the ladder.
	At []policy.Step
	// Changed: something was noted since it was last set to false.
	Changed bool
}

// Reset makes room for n policies and puts them on the ground.
func (s *Steps) Reset(n int) {
	if cap(s.At) < n {
		s.At = make([]policy.Step, n)
	}
	s.At = s.At[:n]
	clear(s.At)
	s.Changed = false
}

func (s *Steps) note(p uint32, step policy.Step) {
	if int(p) < len(s.At) && s.At[p] != step {
		s.At[p] = step
		s.Changed = true
	}
}
