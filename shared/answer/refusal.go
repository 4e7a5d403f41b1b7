// Package answer writes the answer to a client: for each reason to refuse a request its status,
// sentence and body, and the headers. The filter and the gRPC rate limit service both use it.
package answer

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// Kind describes a refusal.
type Kind struct {
	// Status and GRPC are the statuses, Type is the problem type and Title its title.
	Status      uint32
	GRPC        int32
	Type, Title string
	// Counts means that the caller's own use is refused, so that it counts towards a penalty. Only
	// then the sentence says that something is used up.
	Counts bool
	// Waits means that the answer has a Retry-After, because a later request can pass.
	Waits bool
	// Marked means that the answer has x-envoy-ratelimited, so that an Envoy in front does not
	// retry it.
	Marked bool
	// before and after are the parts of the sentence around the policy's name. Without them it
	// depends on the limit.
	before, after string
}

// The gRPC statuses of refusals.
const (
	grpcInvalidArgument   = 3
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
)

// The problem types of the RateLimit draft, and the type of a problem that its status describes.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	abnormalUsage   = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
	plainProblem    = "about:blank"
)

const (
	tooMany  = "Too Many Requests"
	reduced  = "Temporarily Reduced Capacity"
	noReach  = "The limiter cannot reach the counters of policy "
	abnormal = "Abnormal Usage Detected"
)

// Kinds has the kind of each reason.
var Kinds = [...]Kind{
	policy.ReasonQuota: {429, grpcResourceExhausted, quotaExceeded, tooMany,
		true, true, true, "", ""},
	policy.ReasonTooDear: {429, grpcResourceExhausted, quotaExceeded, tooMany,
		false, false, true, "", ""},
	policy.ReasonAbsent: {403, grpcPermissionDenied, plainProblem, "Forbidden",
		false, false, false, "Policy ", " needs to know whose request this is, and the request does not say."},
	policy.ReasonBadCost: {400, grpcInvalidArgument, plainProblem, "Bad Request",
		false, false, false, "Policy ", " needs a cost, a whole number up to its maximum, and the request names none."},
	policy.ReasonFailure: {429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true, noReach, " now."},
	policy.ReasonTooManyWaiting: {429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true, "Too many requests wait for policy ", " already."},
	policy.ReasonContended: {429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true, "Too many requests ask for the same count of policy ", " at once."},
	policy.ReasonInFlight: {429, grpcResourceExhausted, quotaExceeded, tooMany,
		true, true, true, "", ""},
	policy.ReasonSuspended: {429, grpcResourceExhausted, quotaExceeded, tooMany,
		false, false, true, "Policy ", " is suspended for this caller: its quota is 0, and waiting does not help."},
	policy.ReasonPenalty: {429, grpcResourceExhausted, abnormalUsage, abnormal,
		false, true, true, "Policy ",
		" has refused this caller too often, so all its requests are refused until the penalty ends."},
	policy.ReasonShed: {503, grpcUnavailable, reducedCapacity, reduced,
		false, true, true, "What policy ", " protects has more to do than it can."},
	policy.ReasonSeveral: {400, grpcInvalidArgument, plainProblem, "Bad Request",
		false, false, false, "Policy ", " needs to know whose request this is, and the request names several."},
}

// shareUsed is a refusal by a node's own share, while the counters cannot be reached. lostCount is
// a refusal after the store has lost which requests are in flight: until all nodes have reported
// their places, no node gets a place that may belong to another node. heldElsewhere is a refusal
// while other nodes have the places that this node lacks, under way or idle. lostUse is a refusal
// by a bucket that lacks tokens which may be unused, because its count was lost.
var (
	shareUsed = Kind{429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true, noReach, " now, and this proxy admits no more alone."}
	lostCount = Kind{429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true,
		"The limiter has lost how many requests are under way for policy ", ", and counts them anew."}
	lostUse = Kind{429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true,
		"The limiter has lost how much this caller had used of policy ", ", and allows less of it for a time."}
	heldElsewhere = Kind{429, grpcResourceExhausted, reducedCapacity, reduced,
		false, true, true, "Policy ", " has no place for this request here: the others are held for other proxies."}
)

// BanGRPC is the gRPC status for a banned caller.
const BanGRPC = grpcPermissionDenied

// Bans are the sentences for banned callers, by kind of ban.
var Bans = [...]string{
	match.NoBan:       "This request is banned.",
	match.AddressBan:  "Requests from this address are banned.",
	match.ConsumerBan: "The key or identity of this request is banned.",
	match.KeyBan:      "The key under which this request is counted is banned.",
	match.PossibleBan: "This request names too many callers to know whether one of them is banned: name one caller.",
}
