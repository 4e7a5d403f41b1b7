package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// The deciders of the modes.
var (
	// local decides by a bucket of this node only.
	local = decider{source: policy.ByLocal, kind: bucketstore.Local, take: takeLocal}
	// leased decides by tokens that the control plane has leased to this node, or asks the control
	// plane. It also decides for strict mode, in which a node never gets tokens to keep.
	leased = decider{source: policy.ByLease, kind: bucketstore.Leased, take: takeLeased}
	// optimistic decides on this node and reports to the control plane afterwards.
	optimistic = decider{
		source: policy.ByOptimistic, kind: bucketstore.Optimistic, take: takeOptimistic,
	}
)

// fallbacks are the deciders of the steps of on_failure.
var fallbacks = [policy.Steps]*decider{
	policy.StepShare: {source: policy.ByShare, kind: bucketstore.Share, take: takeShare},
	policy.StepAllow: {source: policy.ByFailureAllow, take: takeAlways},
	policy.StepDeny:  {source: policy.ByFailureDeny, take: takeNever},
}

// These deciders count the requests in flight: on this node, or over all nodes by the permits that
// the control plane has leased to this node.
var (
	inFlight = decider{
		source: policy.ByLocal, kind: bucketstore.Local, take: takeInFlight,
	}
	inFlightLeased = decider{
		source: policy.ByLease, kind: bucketstore.Local, take: takeInFlight,
	}
)

// inFlightFallbacks are the steps of on_failure. The requests that they admit count too: they are
// in flight when the control plane is back.
var inFlightFallbacks = [policy.Steps]*decider{
	policy.StepShare: {source: policy.ByShare, kind: bucketstore.Local, take: takeInFlight},
	policy.StepAllow: {source: policy.ByFailureAllow, kind: bucketstore.Local, take: takeInFlight},
	policy.StepDeny:  fallbacks[policy.StepDeny],
}

// adaptiveLimit decides by an adaptive limit.
var adaptiveLimit = decider{
	source: policy.ByLocal, kind: bucketstore.Local, take: takeAdaptive,
}

// takeAlways applies the step allow of on_failure.
func takeAlways(_ *Limiter, _ *Request, h *Hit, _ quota.Instant, do mode) ruling {
	h.passed = do == charge
	return passes
}

// takeNever applies the step deny of on_failure.
func takeNever(_ *Limiter, _ *Request, h *Hit, _ quota.Instant, _ mode) ruling {
	if !h.limit.InFlight && h.Cost > h.limit.Params.Burst {
		return h.refuse(policy.ReasonTooDear, quota.Never)
	}
	return h.refuse(policy.ReasonFailure, quota.Second)
}
