package match

import (
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Index is a policy set compiled for lookups. Load and Enforce change it; in between it is only
// read, so that any number of Matchers can share it. The zero value matches nothing.
//
// Its tables hold no pointers: texts are references into the snapshot, lists are runs in a table
// that all policies share. The garbage collector skips such tables, and the next Load reuses them.
type Index struct {
	snapshot []byte
	version  uint64
	secret   [16]byte
	head     wire.SetHead
	reading  wire.Reading
	// responses are those of the set.
	responses [policy.AnswerCount]wire.Response

	// places numbers the places where requests hold values: a node for each, below the number of
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
	// limits are those of all policies, in the document's order.
	limits []policy.Limit
	// runs are where each run of limits starts, and for each policy where its last one ends.
	runs    []uint32
	methods []wire.Ref
	headers []headerMatch
	parts   []part
	// clients are the ranges of addresses that policies are for.
	clients []policy.Range
	// figures are where requests hold the figures of limits, in the order of the limits. Few limits
	// have any, so they are searched for: a place in each of many policies would cost more.
	figures []figures
	// penalties are the rules of the policies that have one. wide are the policies whose penalties
	// hold under every policy.
	penalties []penalty.Rule
	wide      []uint32

	// adaptives are the adaptive limits.
	adaptives []policy.Adaptive

	// classes are the priorities, with the conditions of each. Their patterns are in the trie, as
	// those of policies from policy.MaxPolicies on. rest is the index of the class of the requests
	// that no other one matches.
	classes []class
	rest    uint8
	// reserves are the classes after which less is left of a limit, in the order of the policies.
	reserves []uint8
	// commits are what requests have cost once they are answered. What was taken points at them, so
	// a Load makes new ones.
	commits []*policy.Commit
	// also are further sources of what requests reserve, in the places of commits.
	also []wire.Budgets

	// show are the parts of a request that may be shown to operators.
	show []part
	// asksEnvoy: to name a request's consumer, Envoy may have to be asked for a property.
	asksEnvoy bool
	// needsClientIP: some policy, list or source looks at the client's address.
	needsClientIP bool

	banned, exempt []policy.Range
	exemptMethods  []wire.Ref
	// exempted holds exempt paths, and exempt consumers as children of its root.
	exempted trie

	// enforcement is what operators have ordered beside the policy set.
	enforcement enforcement

	loading loading
}

// Policy is a compiled policy. Index.Text resolves its texts.
type Policy struct {
	wire.PolicyHead
	// runs are the policy's runs of limits: one or, by tier, one for each tier; then that of the
	// candidate; then the end.
	runs extent
	// The others are lists in the table of the same name.
	methods, headers, parts, clients, reserves extent
	// tiers are those that the policy is for, a bit each; 0 is all.
	tiers uint32
	// penalty is 1 + the index of its rule among the penalties; 0 if it has none.
	penalty uint16
	// needsTier: its limits, its partition or its conditions go by tier.
	needsTier bool
	// ByConsumer: each consumer has buckets of its own.
	ByConsumer bool
	// commit is 1 + the index of what its requests have cost, 0 if that is known before. adaptive
	// is 1 + the index of its one limit if that is adaptive, 0 if it has others.
	commit, adaptive uint16
	// InFlight: it limits requests in flight, or its candidate does.
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
	// tier is, for a policy.SourceFound, the tier of the consumers that are found there.
	tier uint8
	// slot is where an encoder keeps what the request at hand holds there.
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
	// source is where a request has the part, if that is one of its values.
	source source
}

// figures say where requests hold the figures of one limit, given by its index among all limits.
type figures struct {
	limit        uint32
	quota, burst figure
}

// figure is a source and the number that counts where the source holds none. A source of kind 0
// never holds one.
type figure struct {
	source
	standard int64
}

// Version is the loaded snapshot's version, 0 for none or a standalone one.
func (ix *Index) Version() uint64 { return ix.version }

// Len is the number of policies.
func (ix *Index) Len() int { return len(ix.policies) }

// Policy returns the i-th policy of the document. The pointer is good until the next Load.
func (ix *Index) Policy(i uint32) *Policy { return &ix.policies[i] }

// Commit is what requests of a policy have cost once they are answered; nil if that is known
// before. It stays good after the next Load.
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

// Penalty is the i-th policy's rule of penalties, nil if it has none. The pointer is good until the
// next Load.
func (ix *Index) Penalty(i uint32) *penalty.Rule {
	if at := ix.policies[i].penalty; at > 0 {
		return &ix.penalties[at-1]
	}
	return nil
}

// Text resolves a reference. The bytes are good until the next Load.
func (ix *Index) Text(r wire.Ref) []byte { return r.Of(ix.snapshot) }

// Tier is the name of a Hit's tier, nil for 0.
func (ix *Index) Tier(t uint8) []byte {
	if t == 0 {
		return nil
	}
	return ix.Text(ix.tiers[t-1])
}

// Headers says which dialects the policy set asks for.
func (ix *Index) Headers() policy.Headers { return ix.head.Headers }

// TrustedHops is how many proxies before Envoy are trusted to name the client's address.
func (ix *Index) TrustedHops() int { return ix.head.TrustedHops }

// IPv6Prefix is how many bits of an IPv6 address identify a client.
func (ix *Index) IPv6Prefix() int { return ix.head.IPv6Prefix }

// Response is the set's response to refusals of a group.
func (ix *Index) Response(to policy.Answer) wire.Response { return ix.responses[to] }

// Reading says how requests are read.
func (ix *Index) Reading() wire.Reading { return ix.reading }

// NeedsClientIP reports whether any policy looks at the client's address.
func (ix *Index) NeedsClientIP() bool { return ix.needsClientIP }

// Several reports whether a policy has more than one limit for some caller.
func (ix *Index) Several(i uint32) bool {
	p := &ix.policies[i]
	for run := range p.candidateRun() {
		if ix.run(p, run).len() > 1 {
			return true
		}
	}
	return false
}

// run returns the bounds of one of a policy's runs of limits.
func (ix *Index) run(p *Policy, number uint32) extent {
	at := p.runs.from + number
	return extent{ix.runs[at], ix.runs[at+1]}
}

// candidateRun is the number of the run of the policy's candidates; those before are its own.
func (p *Policy) candidateRun() uint32 { return p.runs.to - p.runs.from - 2 }

func (e extent) len() uint32 { return e.to - e.from }

// Scope is whose buckets a policy's are.
type Scope uint8

const (
	// Global buckets are shared by all callers.
	Global Scope = iota
	// User buckets belong to one client or consumer.
	User
	// Shared buckets belong to something that callers share, such as a path.
	Shared
)

// String is the scope's name as Discord's X-RateLimit-Scope has it.
func (s Scope) String() string { return [...]string{"global", "user", "shared"}[s] }

// Scope tells by a policy's partition whose its buckets are.
func (ix *Index) Scope(i uint32) Scope {
	p := &ix.policies[i]
	scope := Global
	for _, part := range ix.parts[p.parts.from:p.parts.to] {
		// Envoy is asked who a caller is.
		if part.kind == policy.PartClientIP || part.kind == policy.PartConsumer || part.source.kind.AsksEnvoy() {
			return User
		}
		scope = Shared
	}
	return scope
}
