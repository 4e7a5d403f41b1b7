package policy

// Reason is the reason of a refusal. The numbers travel in messages: never renumber.
type Reason uint8

const (
	// ReasonQuota: the bucket holds less than the request costs.
	ReasonQuota Reason = iota
	// ReasonTooDear: the request costs more than the bucket can ever hold.
	ReasonTooDear
	// ReasonAbsent: the request lacks a part of the partition key.
	ReasonAbsent
	// ReasonBadCost: the request names no sensible cost.
	ReasonBadCost
	// ReasonFailure: the control plane, or its store, does not answer, and on_failure refuses.
	ReasonFailure
	// ReasonTooManyWaiting: the largest number of requests is waiting.
	ReasonTooManyWaiting
	// ReasonContended: other workers changed the bucket at every attempt.
	ReasonContended
	// ReasonInFlight: the largest number of requests is in flight.
	ReasonInFlight
	// ReasonPenalty: the caller was refused too often, and is refused until its penalty ends.
	ReasonPenalty
	// ReasonShed: the upstream is overloaded, and other requests are more important.
	ReasonShed
	// ReasonSuspended: the quota is 0.
	ReasonSuspended
	// ReasonSeveral: the request identifies its caller in different ways.
	ReasonSeveral
)

// DecisionSource is the part of the system that decided whether a request passes a limit. The
// numbers travel in messages: never renumber.
type DecisionSource uint8

const (
	// ByLocal: a bucket of this node alone.
	ByLocal DecisionSource = iota
	// ByLease: tokens that this node has leased.
	ByLease
	// ByOptimistic: this node, within its slack of an optimistic bucket.
	ByOptimistic
	// ByCentral: the control plane, which was asked for this request.
	ByCentral
	// ByShare: a share of the limit, while the control plane or its store does not answer.
	ByShare
	// ByFailureAllow: the step allow of on_failure.
	ByFailureAllow
	// ByFailureDeny: the step deny of on_failure.
	ByFailureDeny
	// ByCachedDenial: an earlier answer of the control plane that it has no tokens yet.
	ByCachedDenial
	// ByRequest: the request itself: it lacks a key, costs too much, or has a quota of 0.
	ByRequest
	// ByOverload: a bound of waiting requests, or of attempts at a bucket. Adaptive limits are
	// ByLocal.
	ByOverload
	// ByPenalty: a penalty of the caller.
	ByPenalty
)

// Reasons and Sources are their names in refusals, logs, metrics and the REST API.
var (
	Reasons = [...]string{
		ReasonQuota: "quota", ReasonTooDear: "too_dear", ReasonAbsent: "absent", ReasonBadCost: "bad_cost",
		ReasonFailure: "failure", ReasonTooManyWaiting: "too_many_waiting", ReasonContended: "contended",
		ReasonInFlight: "in_flight", ReasonPenalty: "penalty", ReasonShed: "shed",
		ReasonSuspended: "suspended", ReasonSeveral: "several",
	}
	Sources = [...]string{
		ByLocal: "local", ByLease: "lease", ByOptimistic: "optimistic", ByCentral: "central",
		ByShare: "share", ByFailureAllow: "failure_allow", ByFailureDeny: "failure_deny",
		ByCachedDenial: "cached_denial", ByRequest: "request", ByOverload: "overload",
		ByPenalty: "penalty",
	}
)

// String returns the reason's name.
func (r Reason) String() string { return Reasons[r] }

// String returns the source's name.
func (s DecisionSource) String() string { return Sources[s] }
