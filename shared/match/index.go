// Package match turns a request's attributes into hits: which policies apply, and whose bucket each one means. A snapshot is
// compiled once into tables without pointers that are reused for the next one; a request only looks up.
package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Index is a compiled snapshot. The zero value matches nothing. An Index is not safe for concurrent use.
type Index struct {
	snapshot []byte
	version  uint64
	secret   [16]byte
	head     wire.SetHead
	sources  []source
	// tiers are the names of the tiers, tierSources where to find a caller's.
	tiers       []wire.Ref
	tierSources []source
	policies    []Policy
	limits      []policy.Limit
	// runs are where each run of limits starts, and for each policy where its last one ends.
	runs    []uint32
	methods []wire.Ref
	headers []headerMatch
	parts   []part
	// clients are the ranges of addresses that policies are for.
	clients []policy.Range
	// figures are where requests hold the figures of limits.
	figures []figures
	// show are the parts of a request that may be shown. lookups: a consumer may be told by what Envoy has to be asked for.
	show    []part
	lookups bool
	trie    trie

	banned, exempt []policy.Range
	exemptMethods  []wire.Ref
	// exempted holds exempt paths, and exempt consumers as children of its root.
	exempted trie

	orders        orders
	ban           Ban
	needsClientIP bool
	found         []candidate
	key, text     []byte
	// tier is the place of the caller's tier, -1 while nobody has asked for it.
	tier int
	// special: there are consumers with more than a tier. looked: the caller has been looked up; own are its limits in place of
	// those of policies that apply.
	special, looked bool
	turn            uint64
	person          Person
	own             []policy.Limit
	read            wire.Limits
}

// Policy is a compiled policy. It holds no pointers: its texts are references that Index.Text resolves.
type Policy struct {
	wire.PolicyHead
	// runs are those of its limits: one or, by tier, one for each tier, then that of the candidate, then the end.
	runs, methods, headers, parts, clients extent
	// tiers are those that the policy is for, a bit each; 0: all.
	tiers uint32
	// needsTier: its limits or its partition go by tier.
	needsTier bool
	// ByConsumer: each consumer has buckets of its own.
	ByConsumer bool
}

// extent is a run of elements in one of the index's tables.
type extent struct{ from, to uint32 }

type source struct {
	kind policy.SourceKind
	name wire.Ref
	// Of a policy.SourceFound: the consumer's source, from 1, and the tier of those who are found there.
	found, tier uint8
}

type headerMatch struct {
	op          policy.HeaderOp
	name, value wire.Ref
}

type part struct {
	kind policy.PartKind
	name wire.Ref
}

// Load compiles a snapshot. The bytes are copied; memory of an earlier Load is reused. After an error the index must not be
// used: keep the last good one beside it.
func (ix *Index) Load(snapshot []byte) error {
	version, secret, set, err := wire.OpenSnapshot(snapshot)
	if err != nil {
		return err
	}
	if cap(ix.snapshot) < len(snapshot) {
		ix.snapshot = make([]byte, 0, len(snapshot)) // append would round up.
	}
	ix.snapshot = append(ix.snapshot[:0], snapshot...)
	ix.version, ix.secret, ix.needsClientIP = version, secret, false
	ix.sources, ix.policies, ix.methods = ix.sources[:0], ix.policies[:0], ix.methods[:0]
	ix.headers, ix.parts, ix.limits, ix.runs = ix.headers[:0], ix.parts[:0], ix.limits[:0], ix.runs[:0]
	ix.clients, ix.figures = ix.clients[:0], ix.figures[:0]
	ix.tiers, ix.tierSources = ix.tiers[:0], ix.tierSources[:0]
	ix.Obey(&wire.Enforcement{}, 0)
	ix.head = set.Head(
		func(kind policy.SourceKind, name wire.Ref) {
			ix.sources = append(ix.sources, source{kind: kind, name: name})
		},
		func(name wire.Ref) { ix.tiers = append(ix.tiers, name) },
		func(kind policy.SourceKind, name wire.Ref) {
			ix.tierSources = append(ix.tierSources, source{kind: kind, name: name})
		},
	)
	for i := range ix.tierSources {
		ix.resolve(&ix.tierSources[i])
	}
	ix.loadAccess(&set)
	n := set.Policies()
	ix.reserve(min(n, len(snapshot)/leastPolicy))
	ix.trie.reset()
	ix.loadPolicies(&set, n)
	ix.show, ix.lookups = ix.show[:0], false
	for left := set.Shown(); left > 0; left-- {
		kind, name := set.ShownPart()
		ix.show = append(ix.show, part{kind, name})
		ix.needsClientIP = ix.needsClientIP || kind == policy.PartClientIP
	}
	for _, s := range ix.sources {
		ix.lookups = ix.lookups || s.kind == policy.SourceJWT || s.kind == policy.SourceSPIFFE
		ix.needsClientIP = ix.needsClientIP || s.kind == policy.SourceClientIP
	}
	return set.End()
}

// resolve finds the source and the tier that a policy.SourceFound names, once for all requests.
func (ix *Index) resolve(s *source) {
	if s.kind != policy.SourceFound {
		return
	}
	from, tier := policy.Source{Name: string(ix.Text(s.name))}.Found()
	for i, one := range ix.sources {
		if one.kind == from.Kind && string(ix.Text(one.name)) == from.Name {
			s.found = uint8(i) + 1
		}
	}
	for i, ref := range ix.tiers {
		if string(ix.Text(ref)) == tier {
			s.tier = uint8(i)
		}
	}
}

// leastPolicy is less than any policy takes in a snapshot, so what is reserved is bounded by the bytes and not by what they claim.
const leastPolicy = 16

// reserve makes room for n policies, each with one limit, one pattern and one part of the partition, as most have. Tables that grow one
// policy at a time leave as much garbage as they hold, and the memory of a module never shrinks.
func (ix *Index) reserve(n int) {
	if n <= cap(ix.policies) {
		return
	}
	ix.policies, ix.limits, ix.runs = make([]Policy, 0, n), make([]policy.Limit, 0, n), make([]uint32, 0, 2*n)
	ix.parts = make([]part, 0, n)
	ix.trie.reserve(n)
}

func (ix *Index) loadAccess(set *wire.SetReader) {
	ix.banned, ix.exempt, ix.exemptMethods = ix.banned[:0], ix.exempt[:0], ix.exemptMethods[:0]
	ix.exempted.reset()
	var path [1]wire.Ref
	set.Access(
		func(r policy.Range) { ix.banned = append(ix.banned, r) },
		func(r policy.Range) { ix.exempt = append(ix.exempt, r) },
		func(r wire.Ref) {
			path[0] = r
			ix.exempted.insert(ix.snapshot, 0, nil, path[:])
		},
		func(r wire.Ref) { ix.exemptMethods = append(ix.exemptMethods, r) },
		func(r wire.Ref) { ix.exempted.child(ix.snapshot, hostsRoot, consumer, r) },
	)
	ix.needsClientIP = len(ix.banned) > 0 || len(ix.exempt) > 0
}

// loading is the policy that is being loaded. There are thousands, so what takes their parts is made once for all of them.
type loading struct {
	policy       Policy
	hosts, paths []wire.Ref
}

func (ix *Index) loadPolicies(set *wire.SetReader, n int) {
	l := &loading{}
	run := func() { ix.runs = append(ix.runs, uint32(len(ix.limits))) }
	limit := func(one policy.Limit) { ix.limits = append(ix.limits, one) }
	host := func(r wire.Ref) { l.hosts = append(l.hosts, r) }
	method := func(r wire.Ref) { ix.methods = append(ix.methods, r) }
	path := func(r wire.Ref) { l.paths = append(l.paths, r) }
	header := func(op policy.HeaderOp, name, value wire.Ref) {
		ix.headers = append(ix.headers, headerMatch{op, name, value})
	}
	component := func(kind policy.PartKind, name wire.Ref) {
		ix.parts = append(ix.parts, part{kind, name})
		ix.needsClientIP = ix.needsClientIP || kind == policy.PartClientIP
		l.policy.needsTier = l.policy.needsTier || kind == policy.PartTier
		l.policy.ByConsumer = l.policy.ByConsumer || kind == policy.PartConsumer
	}
	client := func(r policy.Range) {
		ix.clients = append(ix.clients, r)
		ix.needsClientIP = true
	}
	first := 0
	own := func(place int, f wire.OwnFigures) {
		ix.addFigures(first+place, f)
	}
	for i := 0; i < n && !set.Failed(); i++ {
		runs, methods, headers, parts, clients := len(ix.runs), len(ix.methods), len(ix.headers), len(ix.parts), len(ix.clients)
		l.hosts, l.paths, first = l.hosts[:0], l.paths[:0], len(ix.limits)
		l.policy = Policy{PolicyHead: set.Policy(run, limit)}
		run()
		l.policy.needsTier = l.policy.ByTier
		set.Lists(host, method, path, header, component)
		l.policy.tiers, l.policy.ContentType = set.Extras(client, own, &l.policy.OnFailure)
		l.policy.needsTier = l.policy.needsTier || l.policy.tiers != 0
		l.policy.clients = extent{uint32(clients), uint32(len(ix.clients))}
		l.policy.runs = extent{uint32(runs), uint32(len(ix.runs))}
		l.policy.methods = extent{uint32(methods), uint32(len(ix.methods))}
		l.policy.headers = extent{uint32(headers), uint32(len(ix.headers))}
		l.policy.parts = extent{uint32(parts), uint32(len(ix.parts))}
		ix.policies = append(ix.policies, l.policy)
		ix.trie.insert(ix.snapshot, uint32(i), l.hosts, l.paths) // Also if it is off: an order may say otherwise.
	}
}

// Version is the loaded snapshot's version, 0 for none or a standalone one.
func (ix *Index) Version() uint64 { return ix.version }

// Len is the number of policies.
func (ix *Index) Len() int { return len(ix.policies) }

// Policy returns the i-th policy of the document. The pointer is good until the next Load.
func (ix *Index) Policy(i uint32) *Policy { return &ix.policies[i] }

// Own are the limits that the caller of the last Match has in place of those of policies that apply. The slice is good until the next
// Match.
func (ix *Index) Own() []policy.Limit { return ix.own }

// Limit returns the i-th of all limits, in the document's order, a policy's drafts after its own. The pointer is good until the
// next Load.
func (ix *Index) Limit(i uint32) *policy.Limit { return &ix.limits[i] }

// Several says whether a policy has more than one limit for some caller.
func (ix *Index) Several(i uint32) bool {
	p := &ix.policies[i]
	for run := range p.candidates() {
		if limits := ix.run(p, run); limits.to-limits.from > 1 {
			return true
		}
	}
	return false
}

// candidates is the number of the run of the policy's draft limits; those before are its own.
func (p *Policy) candidates() uint32 { return p.runs.to - p.runs.from - 2 }

// run is a run of a policy's limits.
func (ix *Index) run(p *Policy, number uint32) extent {
	at := p.runs.from + number
	return extent{ix.runs[at], ix.runs[at+1]}
}

// Tier is the name of a Hit's tier, nil for 0.
func (ix *Index) Tier(t uint8) []byte {
	if t == 0 {
		return nil
	}
	return ix.Text(ix.tiers[t-1])
}

// Text resolves a reference. The bytes are good until the next Load.
func (ix *Index) Text(r wire.Ref) []byte { return r.Of(ix.snapshot) }

// Headers says which dialects the policy set asks for.
func (ix *Index) Headers() policy.Headers { return ix.head.Headers }

// TrustedHops and IPv6Prefix say how to find the client's address; NeedsClientIP whether any policy asks for it.
func (ix *Index) TrustedHops() int { return ix.head.TrustedHops }

// IPv6Prefix is how many bits of an IPv6 address identify a client.
func (ix *Index) IPv6Prefix() int { return ix.head.IPv6Prefix }

// NeedsClientIP says whether any policy asks for the client's address.
func (ix *Index) NeedsClientIP() bool { return ix.needsClientIP }

// Scope says whom a policy's bucket belongs to.
type Scope uint8

// Global buckets are everyone's, User ones a client's or a consumer's, Shared ones those of something that callers share.
const (
	Global Scope = iota
	User
	Shared
)

// String is the scope's name as Discord's X-RateLimit-Scope has it.
func (s Scope) String() string { return [...]string{"global", "user", "shared"}[s] }

// Scope says whom the buckets of a policy belong to, by its partition.
func (ix *Index) Scope(i uint32) Scope {
	p := &ix.policies[i]
	scope := Global
	for _, part := range ix.parts[p.parts.from:p.parts.to] {
		switch part.kind {
		case policy.PartClientIP, policy.PartConsumer, policy.PartJWT, policy.PartSPIFFE:
			return User
		}
		scope = Shared
	}
	return scope
}
