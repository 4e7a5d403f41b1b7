package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

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

// These decide by how many requests are in flight: on this node, or over all nodes by the permits
// that the control plane has leased to this one.
var (
	inFlight = decider{
		source: policy.ByLocal, kind: bucketstore.Local, take: takeInFlight, watch: watchInFlight,
	}
	inFlightLeased = decider{
		source: policy.ByLease, kind: bucketstore.Local, take: takeInFlight, watch: watchInFlight,
	}
)

// inFlightFallbacks are the steps of on_failure. What they admit counts, too: it is in flight when
// the control plane is back.
var inFlightFallbacks = [policy.Steps]*decider{
	policy.StepShare: {source: policy.ByShare, kind: bucketstore.Local, take: takeInFlight},
	policy.StepAllow: {source: policy.ByFailureAllow, kind: bucketstore.Local, take: takeInFlight},
	policy.StepDeny:  fallbacks[policy.StepDeny],
}

// adaptiveLimit decides by an adaptive limit.
var adaptiveLimit = decider{
	source: policy.ByLocal, kind: bucketstore.Local, take: takeAdaptive, watch: watchAdaptive,
}

// match finds the limits that apply to the request. What it keeps of them is copied: the matcher
// serves other requests while this one waits.
func (l *Limiter) match(req *Request, a *match.Attributes) match.Access {
	found := l.matcher.Match(&req.rules.Index, a)
	req.Ban, req.bypassed = found.Ban, found.Bypassed
	req.consumer, req.exceptionsRevision = found.Consumer, found.ExceptionsRevision
	req.own, req.rank = append(req.own[:0], found.Own...), found.Rank
	if l.penalties != nil {
		req.subjects = append(req.subjects, found.Subjects...)
	}
	for i := range found.Hits {
		m := &found.Hits[i]
		req.capCost(m)
		if m.Shadow {
			req.shadows = append(req.shadows, *m)
			continue
		}
		h := Hit{Hit: *m, view: unknown}
		h.queued = m.Cost > 0 && req.LimitOf(m).Algorithm.Queues()
		h.decideBy(l.deciderOf(req, m))
		req.Hits = append(req.Hits, h)
	}
	return found.Access
}

// decideBy hands an open hit to a decider.
func (h *Hit) decideBy(d *decider) {
	h.decider, h.source = d, d.source
	h.passed, h.missing = false, false
	h.queued = h.queued && d.source != policy.ByFailureAllow && d.source != policy.ByFailureDeny
}

// deciderOf is the decider that a hit starts with.
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
