package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// ruling is a decider's result for a hit.
type ruling uint8

const (
	// passes: the bucket allows the request, and is charged if it was to be charged.
	passes ruling = iota
	// refused: the bucket does not allow the request, for the hit's reason.
	refused
	// missing: only the control plane can decide, and it can be asked.
	missing
	// away: only the control plane could decide, and it does not answer.
	away
	// fellBack: the control plane has not answered, and the hit has a decider of on_failure now.
	fellBack
	// contended: other workers changed the bucket at every attempt.
	contended
	// awaits: the request must wait for a place.
	awaits
)

// mode is a decider's access to a bucket: look or charge.
type mode bool

const (
	look   mode = false
	charge mode = true
)

// A decider decides hits in one way. A hit starts with the decider of its policy's mode, and may
// fall back to a decider of the policy's on_failure.
type decider struct {
	// source is the name of the decider in metrics and log fields.
	source policy.DecisionSource
	// kind is the kind of its buckets.
	kind bucketstore.Kind
	// take checks the hit's bucket, or charges it.
	take func(l *Limiter, req *Request, h *Hit, now quota.Instant, do mode) ruling
}

// refuse sets the reason and the wait of a refusing hit.
func (h *Hit) refuse(reason policy.Reason, retry quota.Span) ruling {
	h.reason, h.Retry = reason, retry
	return refused
}

// bucketReason returns the reason of a refusal by a bucket. An empty share does not mean that the
// limit is used up: there would be more tokens if the control plane answered.
func (h *Hit) bucketReason() policy.Reason {
	reason := decide.BucketReason(h.Retry)
	return decide.Blame(reason, h.source == policy.ByShare)
}
