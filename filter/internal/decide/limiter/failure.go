package limiter

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// No other file of the package reads a policy's on_failure. A hit falls back if the control plane
// does not answer in time, or cannot be asked for tokens or for a place in flight. It also falls
// back if its bucket is contended. share.go has the share.

// takeHit decides a hit by its decider, or by the policy's on_failure if the decider cannot decide.
func (l *Limiter) takeHit(req *Request, h *Hit, now quota.Instant, do mode) ruling {
	if h.limit.Suspended() {
		return l.takeSuspended(h)
	}
	f := l.takeOnce(req, h, now, do)
	if f == away {
		since, _ := l.leases.Health.Away()
		l.fallBack(req, h, now, since)
		f = l.takeOnce(req, h, now, do) // No decider of on_failure needs the control plane.
	}
	switch f {
	case contended:
		return l.decideContended(req, h)
	case passes:
		return h.checkLeast()
	}
	return f
}

// takeSuspended decides a hit whose limit is suspended. The consumer may have a limit of its own
// instead; only the control plane knows that.
func (l *Limiter) takeSuspended(h *Hit) ruling {
	if l.leases != nil && h.since == 0 && h.rule.Mode != policy.ModeLocal {
		if _, isAway := l.leases.Health.Away(); !isAway {
			return missing
		}
	}
	return h.refuse(policy.ReasonSuspended, quota.Never)
}

// takeOnce decides a hit by its decider. A turn that another request has left is used first.
func (l *Limiter) takeOnce(req *Request, h *Hit, now quota.Instant, do mode) ruling {
	if h.queued && l.takeKept(h, now, do) {
		return passes
	}
	return h.decider.take(l, req, h, now, do)
}

// fallBack hands a hit to the step of its policy's on_failure that is in force now. The control
// plane has not answered since the instant since.
func (l *Limiter) fallBack(req *Request, h *Hit, now, since quota.Instant) {
	if req.trial != nil {
		req.trial.lose(h)
		return
	}
	step := h.rule.OnFailure.At(max(quota.Span(now-since), 0))
	h.since, h.empty, h.Known = since, step.Empty, false
	if h.limit.InFlight {
		h.decideBy(inFlightFallbacks[step.Do])
	} else {
		h.decideBy(fallbacks[step.Do])
	}
	req.rules.Steps.Note(h.Policy, step.Do)
}

// fallBackUnasked decides hits for which the control plane cannot be asked in time: by this node's
// share, or by the step deny if on_failure begins with it. A policy whose on_failure allows at once
// uses the share too: otherwise overload would be a way around the limit.
func (l *Limiter) fallBackUnasked(req *Request, now quota.Instant) {
	if req.trial == nil {
		l.Stats.TooManyWaiting++
	}
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.missing || h.passed {
			continue
		}
		if req.trial != nil {
			req.trial.lose(h)
			continue
		}
		step := policy.StepShare
		if h.Retry == quota.Never || h.rule.OnFailure.At(0).Do == policy.StepDeny {
			step = policy.StepDeny
		}
		h.since, h.Known = now, false
		h.decideBy(fallbacks[step])
	}
}

// decideContended decides a hit whose bucket is contended, by the last step of on_failure.
func (l *Limiter) decideContended(req *Request, h *Hit) ruling {
	if req.trial != nil {
		req.trial.lose(h)
		h.passed = true
		return passes
	}
	l.Stats.Contended++
	if h.rule.OnFailure.Last().Do != policy.StepAllow {
		return h.refuse(policy.ReasonContended, quota.Second)
	}
	h.decideBy(fallbacks[policy.StepAllow])
	h.passed = true
	return passes
}
