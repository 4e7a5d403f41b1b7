package match

import (
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Index is a policy set compiled for lookups. Load and Enforce change it. Otherwise it is only
// read, so any number of Matchers can share it. The zero value matches nothing.
//
// Its tables hold no pointers: texts are references into the snapshot, lists are runs in a table
// that all policies share. The garbage collector skips such tables, and the next Load reuses them.
type Index struct {
	snapshot []byte
	version  uint64
	secret   [16]byte
	head     wire.SetHead
	reading  wire.Reading
	// responses are the policy set's responses to refusals.
	responses [policy.AnswerCount]wire.Response

	// places numbers the places of a request that have values: a node for each, below the number of
	// its kind.
	places trie
	// sources are the places where a request may name its consumer, in the order of their use.
	sources []source
	// tiers are the names of the tiers.
	tiers []wire.Ref
	// tierSources are the places where a request may name its tier.
	tierSources []source

	policies []Policy
	// trie finds policies by host and path.
	trie trie
	// limits are the limits of all policies, in the document's order.
	limits []policy.Limit
	// runs are the starts of all runs of limits, and for each policy the end of its last run.
	runs    []uint32
	methods []wire.Ref
	headers []headerMatch
	parts   []part
	// clients are the ranges of addresses that policies apply to.
	clients []policy.Range
	// figures are the places of requests that have the figures of limits, in the order of the
	// limits. Few limits have any, so they are searched for. A field in each of many policies would
	// cost more.
	figures []figures
	// penalties are the penalty rules of policies. wide are the policies whose penalties hold under
	// every policy.
	penalties []penalty.Rule
	wide      []uint32

	// adaptives are the adaptive limits.
	adaptives []policy.Adaptive

	// classes are the priorities, with their conditions. Their patterns are in the trie under the
	// policy numbers from policy.MaxPolicies on. rest is the index of the class of all other
	// requests.
	classes []class
	rest    uint8
	// reserves are the classes after which a limit has less left, in the order of the policies.
	reserves []uint8
	// commits describe where the final cost of requests is found after the answer. Taken tokens
	// refer to them, so a Load makes new ones for each snapshot.
	commits []*policy.Commit
	// also are further sources of the reserved cost, with the indexes of commits.
	also []wire.Budgets

	// show are the parts of a request that may be shown to operators.
	show []part
	// asksEnvoy reports whether naming a request's consumer may need a property from Envoy.
	asksEnvoy bool
	// needsClientIP reports whether some policy, list or source uses the client's address.
	needsClientIP bool

	banned, exempt []policy.Range
	exemptMethods  []wire.Ref
	// exempted holds exempt paths, and exempt consumers as children of its root.
	exempted trie

	// enforcement has the operators' orders beside the policy set.
	enforcement enforcement

	loading loading
}

// Policy is a compiled policy. Index.Text resolves its texts.
type Policy struct {
	wire.PolicyHead
	// runs are the policy's runs of limits: one run or, by tier, one for each tier; then the
	// candidate's run; then the end.
	runs extent
	// The following fields are lists in the table of the same name.
	methods, headers, parts, clients, reserves extent
	// tiers has a bit for each tier that the policy is for; 0 is all tiers.
	tiers uint32
	// penalty is 1 + the index of its rule in penalties; 0 if it has none.
	penalty uint16
	// needsTier reports whether its limits, partition or conditions depend on the tier.
	needsTier bool
	// ByConsumer reports whether each consumer has its own buckets.
	ByConsumer bool
	// commit is 1 + the index of its commit; 0 if the cost is known before the answer. adaptive is
	// 1 + the index of its single limit in adaptives; 0 if that is not adaptive.
	commit, adaptive uint16
	// InFlight reports whether it, or its candidate, limits requests in flight.
	InFlight bool
}

// class is a class of requests. Only the conditions of the policy count.
type class struct {
	Policy
	name wire.Ref
}

// extent is a run of elements in one of the index's tables.
type extent struct{ from, to uint32 }

// source is a place of a request where a value is found.
type source struct {
	kind policy.SourceKind
	name wire.Ref
	// consumer is, for a policy.SourceFound, 1 + the index of the consumer's source that it names.
	consumer uint8
	// tier is, for a policy.SourceFound, the tier of the consumers found there.
	tier uint8
	// slot is the index of the place in encoder.held.
	slot uint32
}

// headerMatch is a condition on a header.
type headerMatch struct {
	op    policy.HeaderOp
	name  source
	value wire.Ref
}

// part is a part of a partition key.
type part struct {
	kind policy.PartKind
	// source is the place of the part in a request, if it is one of the request's values.
	source source
}

// figures are the places of the figures of one limit, given by its index among all limits.
type figures struct {
	limit        uint32
	quota, burst figure
}

// figure is a source and the default number for a source without a value. A source of kind 0 never
// has a value.
type figure struct {
	source
	standard int64
}

// Version returns the loaded snapshot's version, 0 for none or a standalone snapshot.
func (ix *Index) Version() uint64 { return ix.version }

// Len returns the number of policies.
func (ix *Index) Len() int { return len(ix.policies) }

// Policy returns the i-th policy of the document. The pointer is good until the next Load.
func (ix *Index) Policy(i uint32) *Policy { return &ix.policies[i] }

// Commit returns how the final cost of a policy's requests is found after the answer; nil if the
// cost is known before. It stays good after the next Load.
func (ix *Index) Commit(p *Policy) *policy.Commit {
	if p.commit == 0 {
		return nil
	}
	return ix.commits[p.commit-1]
}

// Limit returns the i-th of all limits, in the document's order, a policy's drafts after its own.
// The pointer is good until the next Load.
func (ix *Index) Limit(i uint32) *policy.Limit { return &ix.limits[i] }

// HasPenalties reports whether a policy has penalties.
func (ix *Index) HasPenalties() bool { return len(ix.penalties) > 0 }

// Penalty returns the i-th policy's penalty rule, nil if it has none. The pointer is good until the
// next Load.
func (ix *Index) Penalty(i uint32) *penalty.Rule {
	if at := ix.policies[i].penalty; at > 0 {
		return &ix.penalties[at-1]
	}
	return nil
}

// Text resolves a reference. The bytes are good until the next Load.
func (ix *Index) Text(r wire.Ref) []byte { return r.Of(ix.snapshot) }

// Tier returns the name of a Hit's tier, nil for 0.
func (ix *Index) Tier(t uint8) []byte {
	if t == 0 {
		return nil
	}
	return ix.Text(ix.tiers[t-1])
}

// Headers returns the header dialects of the policy set.
func (ix *Index) Headers() policy.Headers { return ix.head.Headers }

// TrustedHops returns the number of proxies before Envoy that are trusted to name the client's
// address.
func (ix *Index) TrustedHops() int { return ix.head.TrustedHops }

// IPv6Prefix returns the number of bits of an IPv6 address that identify a client.
func (ix *Index) IPv6Prefix() int { return ix.head.IPv6Prefix }

// Response returns the set's response to refusals of a group.
func (ix *Index) Response(to policy.Answer) wire.Response { return ix.responses[to] }

// Reading returns how requests are read.
func (ix *Index) Reading() wire.Reading { return ix.reading }

// NeedsClientIP reports whether any policy uses the client's address.
func (ix *Index) NeedsClientIP() bool { return ix.needsClientIP }

// Several reports whether a policy has more than one limit for some caller.
func (ix *Index) Several(i uint32) bool {
	p := &ix.policies[i]
	for run := range p.candidateRun() {
		if ix.runOf(p, run).len() > 1 {
			return true
		}
	}
	return false
}

// runOf returns the bounds of one of a policy's runs of limits.
func (ix *Index) runOf(p *Policy, number uint32) extent {
	at := p.runs.from + number
	return extent{ix.runs[at], ix.runs[at+1]}
}

// candidateRun returns the number of the run of the policy's candidates. The runs before it are the
// policy's own.
func (p *Policy) candidateRun() uint32 { return p.runs.to - p.runs.from - 2 }

func (e extent) len() uint32 { return e.to - e.from }

// Scope is the group of callers that share a policy's buckets.
type Scope uint8

const (
	// Global buckets are shared by all callers.
	Global Scope = iota
	// User buckets belong to one client or consumer.
	User
	// Shared buckets belong to a thing that callers share, such as a path.
	Shared
)

// String returns the scope's name as in Discord's X-RateLimit-Scope.
func (s Scope) String() string { return [...]string{"global", "user", "shared"}[s] }

// Scope returns who shares a policy's buckets, according to its partition.
func (ix *Index) Scope(i uint32) Scope {
	p := &ix.policies[i]
	scope := Global
	for _, part := range ix.parts[p.parts.from:p.parts.to] {
		// Envoy is asked only for sources that identify a caller.
		if part.kind == policy.PartClientIP || part.kind == policy.PartConsumer || part.source.kind.AsksEnvoy() {
			return User
		}
		scope = Shared
	}
	return scope
}
