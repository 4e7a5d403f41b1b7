// Package policy is the policy language: what a policy set may say, what it means, and every reason
// to refuse one. The same code reads the file, the REST document and the filter's plugin
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
	// Priorities are the classes of requests, the most important first; none: all are alike.
	Priorities []Class
	// Routing is how the paths of requests and of policies are read.
	Routing spelling.Routing
	// Responses are by Answer; none: each is the usual one.
	Responses []Response
	// Show lists the parts of a refused request that nodes may report in the clear, up to MaxShown.
	Show []Part
}

// Exempt lists the callers and requests that are never limited and never charged.
type Exempt struct {
	ClientIPs []Range
	// Paths are patterns like those of Match; Consumers the values that identity.consumer finds.
	Paths, Methods, Consumers []string
}

// Identity says who a caller is.
type Identity struct {
	// TrustedHops: 0 takes the connection's peer, N the N-th x-forwarded-for entry from the right.
	TrustedHops int
	// IPv6Prefix is how many bits of an IPv6 address identify a client, 1 to 128.
	IPv6Prefix int
	// NotAppended: Envoy does not append the peer's address to x-forwarded-for.
	NotAppended bool
	// IfSeveral says what a request is that gives several different values where one identifies.
	IfSeveral IfSeveral
	// Consumer lists where to find the consumer; the first that is present counts.
	Consumer []Source
	// Tier lists where to find the caller's tier; the first that holds one of the tiers counts. If
	// none does, it is DefaultTier, an index of Set.Tiers.
	Tier        []Source
	DefaultTier int
}

// Headers says which dialects a client sees.
type Headers struct {
	Standard dialect.Standard
	// Legacy is the older dialect added beside it.
	Legacy dialect.Legacy
	// Unmarked: refusals do not say x-envoy-ratelimited, so Envoys in front retry them as other
	// answers of their status.
	Unmarked bool
}

// Policy is one named rule.
type Policy struct {
	Name      string
	Match     Match
	Partition []Part
	IfAbsent  IfAbsent
	Counting  Counting
	// Limits are 1 to MaxLimits, with different windows; all must allow. With Tiers they are the
	// limits of all tiers, in the order of Set.Tiers.
	Limits []Limit
	// Tiers says which of Limits each of Set.Tiers has; empty: all callers have all of them.
	Tiers []TierLimits
	// Reserve is what is kept of the limits for the more important classes. The limits that follow
	// from it stand in Limits and Candidate behind those that the document names; see Steps.
	Reserve []Reserve
	// Adaptive is a limit that finds itself, in place of limits that the document names.
	Adaptive Adaptive
	// Roots are those of all limits, the candidate's last, where they are not those of a new
	// policy; nil: they are. No document says them: see Inherit.
	Roots []quota.Span
	// Candidate are draft limits, decided in shadow beside the policy's own.
	Candidate []Limit
	// Figures say where requests hold the figures of those limits that have an Own.
	Figures   []Figures
	Cost      Cost
	Commit    Commit
	Mode      Mode
	OnFailure OnFailure
	Enforced  Enforced
	Response  Response
	// Penalty is what repeated refusals bring; nil: nothing.
	Penalty *penalty.Rule
}

// Match says which requests a policy applies to. An empty field matches anything; all fields must
// hold, lists are "any of".
type Match struct {
	// Hosts are lower-case names without port, or "*." and a suffix.
	Hosts   []string
	Methods []string
	// Paths are exact, with {name} for one segment, or with a final /** for everything below.
	Paths   []string
	Headers []HeaderMatch
	// ClientIPs are ranges in rising order and apart. A client whose address is not known is in
	// none.
	ClientIPs []Range
	// Tiers are places in Set.Tiers, in rising order.
	Tiers []int
	// Domain, if not empty, is that of the calls to the gRPC rate limit service that the policy is
	// for.
	Domain string
	// Descriptors, if not empty, are the entries of the descriptors that the policy is for, one for
	// one in their order.
	Descriptors []EntryMatch
}

// IsOfCalls reports whether the policy is for calls to the gRPC rate limit service alone: it names
// a domain or descriptors, which the requests that an Envoy sees do not have.
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

// Exception is a value of an entry, or with Prefix all that begin so.
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

// Part is one component of a partition key. Name is that of a header (in lower case), cookie, query
// parameter or claim.
type Part struct {
	Kind PartKind
	Name string
}

// DescriptorName begins the name of a part that is a value of a descriptor. To all but the gRPC
// rate limit service such a part is a header that no request can have: the name of a header has no
// colon.
const DescriptorName = "descriptor:"

// Descriptor is the part that is the value of the descriptor's entry with a key; if several have
// the key, all their values.
func Descriptor(key string) Part { return Part{PartHeader, DescriptorName + key} }

// Descriptor returns the key of the descriptor's entry whose value the part is; false for parts of
// other kinds.
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

	// PartEnd is the number after that of the last component.
	PartEnd
)

// IfAbsent says what happens when a component of the partition key is missing.
type IfAbsent uint8

// Skip leaves such requests to other policies, Deny refuses them, Shared gives them one bucket.
const (
	AbsentSkip IfAbsent = iota
	AbsentDeny
	AbsentShared
)

// Limit is a quota per window and how it is counted, or the requests that may be in flight. Make
// one with NewLimit or NewInFlight.
type Limit struct {
	Counting
	Quota int64
	// Window is that of the quota. For requests in flight it is how long each counts at most; 0 is
	// for as long as it lasts.
	Window quota.Span
	// Params are the exact figures of a bucket, including the burst: for a leaky bucket its places
	// and the request that is served. For a window algorithm they are the long-run rate, with the
	// quota as burst, which sizes leases and appears in headers.
	Params quota.Params
	// Root names the limit's buckets among those of its list, whatever place it has there: the
	// window of the limit when it was put into the list, or 0. See Inherit. Of requests in flight
	// it is 0.
	Root quota.Span
	// Grain is the resolution of time of a window algorithm. WindowsOf makes its exact figures of
	// this and of the fields above, because an Envoy holds many limits.
	Grain quota.Span
}

// Counting is how a policy's limits count. The zero value is the token bucket.
type Counting struct {
	Algorithm quota.Algorithm
	// Calendar: the windows of a FixedWindow begin where those of the calendar do in UTC, and not
	// at an offset for each key. It stands here to keep limits small: an Envoy has many.
	Calendar bool
	// Own is 0 in a policy. In a limit it is the index, from 1, among Policy.Figures of those that
	// requests hold for it. The limit's figures are then the most that they may hold or, after For,
	// what one of them holds. 0: they are the same for all callers.
	Own uint8
	// InFlight: a limit of requests in flight, which has no algorithm. False in a policy.
	InFlight bool
	// Subwindows are the parts of a SlidingWindow. MaxWait is the longest delay of a LeakyBucket,
	// or the longest wait for a place in flight.
	Subwindows int
	MaxWait    quota.Span
}

// Cost is what a request costs, or reserves if that is known only later: Fixed, or a value that the
// request has.
type Cost struct {
	Fixed int64
	// Source, if its name is not empty, is where the request has it, at most Max: a header, or for
	// a reservation also a claim or metadata.
	Source Source
	// Also are the names of further sources of the same kind, of a reservation; empty ones are
	// none. The largest that the request says counts.
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

// MaxBudgets is how many sources of a reservation a policy names.
const MaxBudgets = 4

// Mode says how global a policy is.
type Mode uint8

// Leased is the default mode.
const (
	ModeLeased Mode = iota
	ModeLocal
	ModeStrict
	ModeOptimistic
)

// Enforced is the percentage of partition keys for which a policy is enforced. The others are in
// shadow: counted, and the request unchanged. Every node chooses the same keys, and every larger
// percentage includes them.
type Enforced uint8

// All keys, none of them (shadow), and a policy that is switched off.
const (
	EnforcedAll    Enforced = 100
	EnforcedShadow Enforced = 0
	EnforcedOff    Enforced = 255
)

// Bounds of the language. They keep every policy set that validates within what a filter can hold.
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
