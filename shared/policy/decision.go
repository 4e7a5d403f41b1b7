package policy

// Reason is why a request was refused. The numbers travel in messages: never renumber.
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
	// ReasonTooManyWaiting: as many requests wait as may.
	ReasonTooManyWaiting
	// ReasonContended: other workers changed the bucket at every attempt.
	ReasonContended
	// ReasonInFlight: as many requests are in flight as may be.
	ReasonInFlight
	// ReasonPenalty: the caller was refused too often, and is refused until its penalty ends.
	ReasonPenalty
	// ReasonShed: the upstream has more to do than it can, and others matter more.
	ReasonShed
	// ReasonSuspended: the quota is 0.
	ReasonSuspended
	// ReasonSeveral: the request says in different ways whose it is.
	ReasonSeveral
)

// DecisionSource is what decided whether a request passes a limit. The numbers travel in messages:
// never renumber.
type DecisionSource uint8

const (
	// ByLocal: a bucket of this node alone.
	ByLocal DecisionSource = iota
	// ByLease: tokens that this node has leased.
	ByLease
	// ByOptimistic: this node, within its slack of an optimistic bucket.
	ByOptimistic
	// ByCentral: the control plane, asked for this very request.
	ByCentral
	// ByShare: a share of the limit, while the control plane or its store does not answer.
	ByShare
	// ByFailureAllow: the step allow of on_failure.
	ByFailureAllow
	// ByFailureDeny: the step deny of on_failure.
	ByFailureDeny
	// ByCachedDenial: an earlier answer of the control plane, that it has nothing yet.
	ByCachedDenial
	// ByRequest: the request itself, which lacks a key or costs too much, or whose quota is 0.
	ByRequest
	// ByOverload: a bound of waiting requests, or of attempts at a bucket. Adaptive limits are
	// ByLocal.
	ByOverload
	// ByPenalty: a penalty of the caller's.
	ByPenalty
)

// Reasons and Sources are the words for them, in refusals, logs, metrics and the REST API.
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

// String is the reason's word.
func (r Reason) String() string { return Reasons[r] }

// String is the source's word.
func (s DecisionSource) String() string { return Sources[s] }
