// Package policy is the policy language: the contents of a policy set, their meaning, and every
// reason to refuse a set. The same code reads the file, the REST document and the filter's plugin
// configuration.
package policy

import (
	"strings"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/spelling"
)

// Set is a validated policy set. The zero value limits nothing.
type Set struct {
	Identity Identity
	// Tiers are the names of the tiers that callers may have.
	Tiers    []string
	Headers  Headers
	Exempt   Exempt
	Banned   []Range
	Policies []Policy
	// Priorities are the classes of requests, the most important first; empty if all are alike.
	Priorities []Class
	// Routing is how the paths of requests and of policies are read.
	Routing spelling.Routing
	// Responses are indexed by Answer; empty if each is the usual response.
	Responses []Response
	// Show lists the parts of a refused request that nodes may report in the clear, up to MaxShown.
	Show []Part
}

// Exempt lists the callers and requests that are never limited and never charged.
type Exempt struct {
	ClientIPs []Range
	// Paths are patterns as in Match; Consumers are values that identity.consumer finds.
	Paths, Methods, Consumers []string
}

// Identity defines how callers are identified.
type Identity struct {
	// TrustedHops: 0 takes the connection's peer, N the N-th x-forwarded-for entry from the right.
	TrustedHops int
	// IPv6Prefix is the number of bits of an IPv6 address that identify a client, 1 to 128.
	IPv6Prefix int
	// NotAppended means that Envoy does not append the peer's address to x-forwarded-for.
	NotAppended bool
	// IfSeveral decides about a request with several different values in a place that identifies
	// it.
	IfSeveral IfSeveral
	// Consumer lists the places of the consumer; the first place with a value counts.
	Consumer []Source
	// Tier lists the places of the caller's tier; the first place with the name of a tier counts.
	// If there is none the tier is DefaultTier, an index of Set.Tiers.
	Tier        []Source
	DefaultTier int
}

// Headers defines the header dialects that a client gets.
type Headers struct {
	Standard dialect.Standard
	// Legacy is the older dialect added beside it.
	Legacy dialect.Legacy
	// Unmarked means that refusals have no x-envoy-ratelimited, so Envoys in front retry them like
	// other answers of their status.
	Unmarked bool
}

// Policy is one named rule.
type Policy struct {
	Name      string
	Match     Match
	Partition []Part
	IfAbsent  IfAbsent
	Counting  Counting
	// Limits are 1 to MaxLimits limits with different windows; all must allow. With Tiers they are
	// the limits of all tiers, in the order of Set.Tiers.
	Limits []Limit
	// Tiers has the part of Limits for each of Set.Tiers; empty if all limits are for all callers.
	Tiers []TierLimits
	// Reserve is the part of the limits that is kept for the more important classes. The limits
	// that follow from it are in Limits and Candidate after the limits that the document names; see
	// Steps.
	Reserve []Reserve
	// Adaptive is a limit that finds its own value, in place of limits that the document names.
	Adaptive Adaptive
	// Roots are the roots of all limits, the candidate's last, if they differ from the roots of a
	// new policy; nil otherwise. No document contains them: see Inherit.
	Roots []quota.Span
	// Candidate are draft limits, decided in shadow beside the policy's own.
	Candidate []Limit
	// Figures are the places in requests of the figures of limits that have an Own.
	Figures   []Figures
	Cost      Cost
	Commit    Commit
	Mode      Mode
	OnFailure OnFailure
	Enforced  Enforced
	Response  Response
	// Penalty is the penalty for repeated refusals; nil for none.
	Penalty *penalty.Rule
}

// Match selects the requests that a policy applies to. An empty field matches anything. All fields
// must match; a list matches if any of its elements does.
type Match struct {
	// Hosts are lower-case names without port, or "*." and a suffix.
	Hosts   []string
	Methods []string
	// Paths are exact, with {name} for one segment, or with a final /** for everything below.
	Paths   []string
	Headers []HeaderMatch
	// ClientIPs are ranges in rising order that do not overlap. A client with an unknown address is
	// in none.
	ClientIPs []Range
	// Tiers are indexes of Set.Tiers, in rising order.
	Tiers []int
	// Domain, if not empty, selects the calls to the gRPC rate limit service with this domain.
	Domain string
	// Descriptors, if not empty, select calls by the entries of their descriptors, one for one in
	// their order.
	Descriptors []EntryMatch
}

// IsOfCalls reports whether the policy is only for calls to the gRPC rate limit service: it has a
// domain or descriptors, which requests through an Envoy do not have.
func (m *Match) IsOfCalls() bool { return m.Domain != "" || len(m.Descriptors) > 0 }

// EntryMatch is a condition on one entry of a descriptor. Name is the entry's key.
type EntryMatch struct {
	Name string
	// Op is HeaderPresent, which any value meets, HeaderEquals or HeaderPrefix.
	Op    HeaderOp
	Value string
	// Except are values that do not meet the condition.
	Except []Exception
}

// Exception is a value of an entry or, with Prefix, the beginning of values.
type Exception struct {
	Value  string
	Prefix bool
}

// HeaderMatch is a condition on one header. Name is in lower case.
type HeaderMatch struct {
	Name  string
	Op    HeaderOp
	Value string
}

// HeaderOp is the kind of condition.
type HeaderOp uint8

// The conditions on a header.
const (
	HeaderPresent HeaderOp = iota + 1
	HeaderEquals
	HeaderPrefix
	HeaderAbsent
)

// Part is one component of a partition key. Name is the name of a header (in lower case), cookie,
// query parameter or claim.
type Part struct {
	Kind PartKind
	Name string
}

// DescriptorName is the prefix of the name of a part that is a value of a descriptor. Only the gRPC
// rate limit service has such values. Elsewhere the part is a header that no request can have,
// because the name of a header has no colon.
const DescriptorName = "descriptor:"

// Descriptor returns the part for the values of all descriptor entries with a key.
func Descriptor(key string) Part { return Part{PartHeader, DescriptorName + key} }

// Descriptor returns the key of the descriptor entry that the part is the value of; false for other
// parts.
func (p Part) Descriptor() (key string, ok bool) {
	if p.Kind != PartHeader {
		return "", false
	}
	return strings.CutPrefix(p.Name, DescriptorName)
}

// PartKind is the kind of component. Its number is part of the key's encoding: never renumber.
type PartKind uint8

// The components.
const (
	PartClientIP PartKind = iota + 1
	PartConsumer
	PartMethod
	PartHost
	PartPath
	PartPolicyPath
	PartHeader
	PartCookie
	PartQuery
	PartJWT
	PartSPIFFE
	PartTier
	// PartUpstream is Envoy's cluster that the request goes to.
	PartUpstream
	PartCertSubject

	// PartEnd is one more than the number of the last component.
	PartEnd
)

// IfAbsent decides about a request that lacks a component of the partition key.
type IfAbsent uint8

// Skip leaves such requests to other policies, Deny refuses them, Shared counts them in one bucket.
const (
	AbsentSkip IfAbsent = iota
	AbsentDeny
	AbsentShared
)

// Limit is a quota per window and the way to count it, or a number of requests in flight. Make a
// Limit with NewLimit or NewInFlight.
type Limit struct {
	Counting
	Quota int64
	// Window is the window of the quota. For requests in flight it is the longest time that a
	// request counts; 0 means as long as the request lasts.
	Window quota.Span
	// Params are the exact figures of a bucket, including the burst. For a leaky bucket the burst
	// is its places and the request that is served. For a window algorithm they are the long-run
	// rate, with the quota as burst, which sizes leases and is shown in headers.
	Params quota.Params
	// Root identifies the limit's buckets in its list, whatever its index is: the window of the
	// limit when it was added to the list, or 0. See Inherit. It is 0 for requests in flight.
	Root quota.Span
	// Grain is the resolution of time of a window algorithm. WindowsOf computes its exact figures
	// from this field and the fields above, because an Envoy holds many limits.
	Grain quota.Span
}

// Counting defines how a policy's limits count. The zero value is the token bucket.
type Counting struct {
	Algorithm quota.Algorithm
	// Calendar means that the windows of a FixedWindow begin with the windows of the calendar in
	// UTC, and not at an offset for each key. It is here to keep limits small: an Envoy has many.
	Calendar bool
	// Own is 0 in a policy. In a limit it is the index, from 1, in Policy.Figures of the figures
	// that requests have for it. Then the limit's figures are the most that a request may have or,
	// after For, the figures of one request. 0 means that the figures are the same for all callers.
	Own uint8
	// InFlight marks a limit of requests in flight, which has no algorithm. False in a policy.
	InFlight bool
	// Subwindows is the number of parts of a SlidingWindow. MaxWait is the longest delay of a
	// LeakyBucket, or the longest wait for a place in flight.
	Subwindows int
	MaxWait    quota.Span
}

// Cost is the cost of a request, or the reserved cost if the cost is known only later: Fixed, or a
// value in the request.
type Cost struct {
	Fixed int64
	// Source, if its name is not empty, is the place of the value in the request, at most Max: a
	// header, or for a reservation also a claim or metadata.
	Source Source
	// Also are the names of further sources of the same kind, for a reservation; empty names are
	// unused. The largest value in the request counts.
	Also [MaxBudgets - 1]string
	Max  int64
	// Invalid is the cost if the value is missing or invalid; DenyInvalid refuses it with 400
	// instead.
	Invalid     int64
	DenyInvalid bool
}

// Sources returns all sources of a cost; none if it is fixed.
func (c *Cost) Sources() (all []Source) {
	if c.Source.Name != "" {
		all = append(all, c.Source)
	}
	for _, name := range c.Also {
		if name != "" {
			all = append(all, Source{c.Source.Kind, name})
		}
	}
	return all
}

// MaxBudgets is the largest number of sources of a reservation.
const MaxBudgets = 4

// Mode is how the buckets of a policy are shared between nodes.
type Mode uint8

// Leased is the default mode.
const (
	ModeLeased Mode = iota
	ModeLocal
	ModeStrict
	ModeOptimistic
)

// Enforced is the percentage of partition keys for which a policy is enforced. The other keys are
// in shadow: their requests are counted and not changed. Every node chooses the same keys, and
// every larger percentage includes them.
type Enforced uint8

// All keys, no keys (shadow), and a policy that is switched off.
const (
	EnforcedAll    Enforced = 100
	EnforcedShadow Enforced = 0
	EnforcedOff    Enforced = 255
)

// Bounds of the language. Every policy set within them fits into a filter.
const (
	MaxPolicies  = 10_000
	MaxAddresses = 10_000
	MaxConsumers = 10_000
	MaxListItems = 256
	MaxLimits    = 8
	MaxTiers     = 16
	// MaxSetLimits bounds the limits of all policies and tiers together.
	MaxSetLimits = 100_000
	MaxText      = 1024
	MaxBody      = 4096
	MaxCost      = 1 << 32
	// MaxEntries bounds the entries of a descriptor, MaxKey the length of their keys.
	MaxEntries = 32
	MaxKey     = 256
)
