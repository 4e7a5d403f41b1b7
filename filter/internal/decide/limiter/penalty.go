package limiter

import (
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// subjectOf returns the caller as a policy's penalties identify it; nil if the policy has no
// penalties.
func (req *Request) subjectOf(policy uint32) *match.Subject {
	for i := range req.subjects {
		if req.subjects[i].Policy == policy {
			return &req.subjects[i]
		}
	}
	return nil
}

// penalisedHit returns the index of the hit whose policy's penalty lasts longest, or none if no
// penalty refuses the request. A request that no enforced policy applies to is not refused.
//
//go:noinline
func (l *Limiter) penalisedHit(req *Request, now quota.Instant) int {
	worst, limits := none, len(req.Hits)
	for i := range req.subjects {
		s := &req.subjects[i]
		if !decide.LooksForPenalty(s, limits) {
			continue
		}
		left := l.penalties.Find(&req.rules.Index, s, now)
		switch {
		case left == 0:
		case s.Shadow:
			s.Penalised = true
		default:
			at := req.hitOf(s)
			h := &req.Hits[at]
			h.Retry, h.Reset = left, left
			worst = req.longerWait(worst, at)
		}
	}
	return worst
}

// penaltyLeft returns the longest remaining time of the penalties that refuse the caller now.
func (l *Limiter) penaltyLeft(req *Request, now quota.Instant) (longest quota.Span) {
	for i := range req.subjects {
		if s := &req.subjects[i]; !s.Shadow {
			longest = max(longest, l.penalties.Left(s, now))
		}
	}
	return longest
}

// hitOf returns the index of a policy's hit. It adds a hit if the policy does not apply to the
// request: the penalty then holds under every policy.
func (req *Request) hitOf(s *match.Subject) int {
	for i := range req.Hits {
		if req.Hits[i].Policy == s.Policy {
			return i
		}
	}
	req.addHit(&match.Hit{Policy: s.Policy, Limit: s.Limit, Key: s.Key})
	return len(req.Hits) - 1
}

// countOffence counts that a policy has refused the caller because of the caller's own use. It
// returns the remaining time of a penalty that refuses the caller from now on, 0 if there is no
// penalty.
func (l *Limiter) countOffence(req *Request, policy uint32, shadow bool, now quota.Instant) quota.Span {
	if s := req.subjectOf(policy); s != nil {
		return l.penalties.Refused(&req.rules.Index, s, shadow, now)
	}
	return 0
}
