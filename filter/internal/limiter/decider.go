package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// finding is what a decider makes of a hit.
type finding uint8

const (
	// passes: the bucket allows the request and, when charged, has been.
	passes finding = iota
	// refused: the bucket does not allow it, for the hit's reason.
	refused
	// missing: only the control plane can say, and it can be asked.
	missing
	// away: only the control plane could say, and it does not answer.
	away
	// fellBack: it has not answered, and the hit now has a decider of on_failure.
	fellBack
	// contended: other workers changed the bucket at every attempt.
	contended
	// awaits: the request is to wait for a place.
	awaits
)

// A decider decides hits in one way. Hits start with the one of their policy's mode and may fall
// back to one of their policy's on_failure.
type decider struct {
	// source is what metrics and log fields call it.
	source policy.DecisionSource
	// kind is the kind of its buckets.
	kind bucketstore.Kind
	// take looks at the hit's bucket, or charges it.
	take func(l *Limiter, req *Request, h *Hit, now quota.Instant, charging bool) finding
	// watch does the same for a policy in shadow or a candidate: it neither waits nor falls back.
	watch func(l *Limiter, req *Request, m *match.Hit, now quota.Instant, charging bool) view
}

// The deciders of the modes.
var (
	// local decides by a bucket of this node alone.
	local = decider{source: policy.ByLocal, kind: bucketstore.Local, take: takeLocal, watch: watchLocal}
	// leased decides by tokens that the control plane has leased to this node, or by asking it. It
	// is the decider of strict too, which is never leased any.
	leased = decider{source: policy.ByLease, kind: bucketstore.Leased, take: takeLeased, watch: watchLeased}
	// optimistic decides on this node and reports to the control plane afterwards.
	optimistic = decider{
		source: policy.ByOptimistic, kind: bucketstore.Optimistic, take: takeOptimistic, watch: watchOptimistic,
	}
)

// fallbacks are the deciders of the steps of on_failure.
var fallbacks = [policy.Steps]*decider{
	policy.StepShare: {source: policy.ByShare, kind: bucketstore.Share, take: takeShare},
	policy.StepAllow: {source: policy.ByFailureAllow, take: takeAlways},
	policy.StepDeny:  {source: policy.ByFailureDeny, take: takeNever},
}

func (l *Limiter) deciderOf(req *Request, m *match.Hit) *decider {
	p := req.policyOf(m)
	switch {
	case req.rules.Index.Adaptive(p) != nil:
		return &adaptiveLimit
	case req.LimitOf(m).InFlight:
		if p.Mode == policy.ModeLeased && l.leases != nil {
			return &inFlightLeased
		}
		return &inFlight
	case p.Mode == policy.ModeLocal, l.leases == nil:
		return &local
	case p.Mode == policy.ModeOptimistic:
		return &optimistic
	}
	return &leased
}

// takeAlways is the step allow of on_failure.
func takeAlways(_ *Limiter, _ *Request, h *Hit, _ quota.Instant, charging bool) finding {
	h.passed = charging
	return passes
}

// takeNever is the step deny of on_failure.
func takeNever(_ *Limiter, _ *Request, h *Hit, _ quota.Instant, _ bool) finding {
	return h.refuse(policy.ReasonFailure, quota.Second)
}

// refuse notes why a hit refuses and for how long.
func (h *Hit) refuse(reason policy.Reason, retry quota.Span) finding {
	h.reason, h.Retry = reason, retry
	return refused
}

// emptyOrTooDear is the reason of a refusal by a bucket. A share that is used up tells nothing
// about the limit: there would be more if the control plane answered.
func (h *Hit) emptyOrTooDear() policy.Reason {
	switch {
	case h.Retry == quota.Never:
		return policy.ReasonTooDear
	case h.source == policy.ByShare:
		return policy.ReasonFailure
	}
	return policy.ReasonQuota
}
