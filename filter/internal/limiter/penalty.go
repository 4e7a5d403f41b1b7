package limiter

import (
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// subjectOf is the caller as a policy knows it, nil if the policy has no penalties.
func (req *Request) subjectOf(policy uint32) *match.Subject {
	for i := range req.subjects {
		if req.subjects[i].Policy == policy {
			return &req.subjects[i]
		}
	}
	return nil
}

// penalised is the index of the hit whose policy's penalty lasts longest, none if no penalty
// refuses the request. One that no enforced policy applies to is not refused.
//
//go:noinline
func (l *Limiter) penalised(req *Request, now quota.Instant) int {
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
			worst = req.later(worst, at)
		}
	}
	return worst
}

// penaltyLeft is how long penalties go on that refuse the caller by now.
func (l *Limiter) penaltyLeft(req *Request, now quota.Instant) (longest quota.Span) {
	for i := range req.subjects {
		if s := &req.subjects[i]; !s.Shadow {
			longest = max(longest, l.penalties.Left(s, now))
		}
	}
	return longest
}

// hitOf is the index of the hit that stands for a policy. One of a policy that does not apply to
// the request, and whose penalty holds under every policy, is added.
func (req *Request) hitOf(s *match.Subject) int {
	for i := range req.Hits {
		if req.Hits[i].Policy == s.Policy {
			return i
		}
	}
	req.add(&match.Hit{Policy: s.Policy, Limit: s.Limit, Key: s.Key})
	return len(req.Hits) - 1
}

// offend counts that a policy has refused the caller, for a reason that is the caller's own use. It
// returns for how long a penalty refuses the caller from now on, 0 if none does.
func (l *Limiter) offend(req *Request, policy uint32, shadow bool, now quota.Instant) quota.Span {
	if s := req.subjectOf(policy); s != nil {
		return l.penalties.Refused(&req.rules.Index, s, shadow, now)
	}
	return 0
}
