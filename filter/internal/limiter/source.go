package limiter

// Source is what decided a hit. The numbers travel: they are the indexes of policy.Sources.
type Source uint8

const (
	// ByLocal: a bucket of this node alone.
	ByLocal Source = iota
	// ByLease: tokens that this node has leased.
	ByLease
	// ByOptimistic: this node, within its slack of an optimistic bucket.
	ByOptimistic
	// ByCentral: the control plane, asked for this very request.
	ByCentral
	// ByShare: this node's share of the limit, while the control plane does not answer.
	ByShare
	// ByFailureAllow: the step allow of on_failure.
	ByFailureAllow
	// ByFailureDeny: the step deny of on_failure.
	ByFailureDeny
	// ByCachedDenial: an earlier answer of the control plane, that it has nothing yet.
	ByCachedDenial
	// ByRequest: the request itself, which lacks a key or costs too much.
	ByRequest
	// ByOverload: a bound of waiting requests, or of attempts at a bucket.
	ByOverload
	// ByPenalty: a penalty of the caller's.
	ByPenalty
	// Sources is how many there are.
	Sources
)

// refusedBy is the source of a refusal.
func (h *Hit) refusedBy(reason Reason) Source {
	switch {
	case reason == Absent, reason == BadCost, reason == TooDear:
		return ByRequest
	case reason == TooManyWaiting, reason == Contended:
		return ByOverload
	case reason == Penalty:
		return ByPenalty
	case h.source == ByLease:
		return ByCachedDenial
	}
	return h.source
}
