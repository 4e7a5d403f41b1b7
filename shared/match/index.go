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
	policies []Policy
	limits   []policy.Limit
	methods  []wire.Ref
	headers  []headerMatch
	parts    []part
	trie     trie

	banned, exempt []policy.Range
	exemptMethods  []wire.Ref
	// exempted holds exempt paths, and exempt consumers as children of its root.
	exempted trie

	needsClientIP bool
	found         []candidate
	key, text     []byte
}

// Policy is a compiled policy. It holds no pointers: its texts are references that Index.Text resolves.
type Policy struct {
	wire.PolicyHead
	limits, methods, headers, parts extent
}

// extent is a run of elements in one of the index's tables.
type extent struct{ from, to uint32 }

type source struct {
	kind policy.SourceKind
	name wire.Ref
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
	ix.snapshot = append(ix.snapshot[:0], snapshot...)
	ix.version, ix.secret, ix.needsClientIP = version, secret, false
	ix.sources, ix.policies, ix.methods = ix.sources[:0], ix.policies[:0], ix.methods[:0]
	ix.headers, ix.parts, ix.limits = ix.headers[:0], ix.parts[:0], ix.limits[:0]
	ix.head = set.Head(func(kind policy.SourceKind, name wire.Ref) {
		ix.sources = append(ix.sources, source{kind, name})
	})
	ix.loadAccess(&set)
	ix.trie.reset()
	var hosts, paths []wire.Ref
	for n, i := set.Policies(), 0; i < n && !set.Failed(); i++ {
		hosts, paths = ix.loadPolicy(&set, hosts[:0], paths[:0])
		if ix.policies[i].Enforced != policy.EnforcedOff {
			ix.trie.insert(ix.snapshot, uint32(i), hosts, paths)
		}
	}
	return set.End()
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

func (ix *Index) loadPolicy(set *wire.SetReader, hosts, paths []wire.Ref) (h, p []wire.Ref) {
	limits := len(ix.limits)
	compiled := Policy{PolicyHead: set.Policy(func(l policy.Limit) { ix.limits = append(ix.limits, l) })}
	methods, headers, parts := len(ix.methods), len(ix.headers), len(ix.parts)
	set.Lists(
		func(r wire.Ref) { hosts = append(hosts, r) },
		func(r wire.Ref) { ix.methods = append(ix.methods, r) },
		func(r wire.Ref) { paths = append(paths, r) },
		func(op policy.HeaderOp, name, value wire.Ref) {
			ix.headers = append(ix.headers, headerMatch{op, name, value})
		},
		func(kind policy.PartKind, name wire.Ref) {
			ix.parts = append(ix.parts, part{kind, name})
			ix.needsClientIP = ix.needsClientIP || kind == policy.PartClientIP
		},
	)
	compiled.limits = extent{uint32(limits), uint32(len(ix.limits))}
	compiled.methods = extent{uint32(methods), uint32(len(ix.methods))}
	compiled.headers = extent{uint32(headers), uint32(len(ix.headers))}
	compiled.parts = extent{uint32(parts), uint32(len(ix.parts))}
	ix.policies = append(ix.policies, compiled)
	return hosts, paths
}

// Version is the loaded snapshot's version, 0 for none or a standalone one.
func (ix *Index) Version() uint64 { return ix.version }

// Len is the number of policies.
func (ix *Index) Len() int { return len(ix.policies) }

// Policy returns the i-th policy of the document. The pointer is good until the next Load.
func (ix *Index) Policy(i uint32) *Policy { return &ix.policies[i] }

// Limit returns the i-th of all limits, in the document's order. The pointer is good until the next Load.
func (ix *Index) Limit(i uint32) *policy.Limit { return &ix.limits[i] }

// Several says whether a policy has more than one limit.
func (ix *Index) Several(i uint32) bool {
	p := &ix.policies[i]
	return p.limits.to-p.limits.from > 1
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
