package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// ruling is how a decider rules on a hit.
type ruling uint8

const (
	// passes: the bucket allows the request and, when charged, has been.
	passes ruling = iota
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

// mode is how a decider treats a bucket.
type mode bool

const (
	look   mode = false
	charge mode = true
)

// A decider decides hits in one way. Hits start with the one of their policy's mode and may fall
// back to one of their policy's on_failure.
type decider struct {
	// source is what metrics and log fields call it.
	source policy.DecisionSource
	// kind is the kind of its buckets.
	kind bucketstore.Kind
	// take looks at the hit's bucket, or charges it.
	take func(l *Limiter, req *Request, h *Hit, now quota.Instant, do mode) ruling
}

// refuse notes why a hit refuses and for how long.
func (h *Hit) refuse(reason policy.Reason, retry quota.Span) ruling {
	h.reason, h.Retry = reason, retry
	return refused
}

// emptyOrTooDear is the reason of a refusal by a bucket. A share that is used up tells nothing
// about the limit: there would be more if the control plane answered.
func (h *Hit) emptyOrTooDear() policy.Reason {
	reason := decide.BucketReason(h.Retry)
	return decide.Blame(reason, h.source == policy.ByShare)
}
