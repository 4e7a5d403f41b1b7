package match

import (
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Load compiles a snapshot. No order of an operator is in force after it. The bytes are copied, and
// memory of an earlier Load is reused. After an error the index must not be used: keep the last
// good index beside it.
func (ix *Index) Load(snapshot []byte) error {
	if err := ix.Begin(snapshot); err != nil {
		return err
	}
	_, err := ix.Continue(WholeSet)
	return err
}

// WholeSet is enough work for Continue to load any snapshot in one call.
const WholeSet = 1 << 30

// Begin starts a Load, which Continue continues part by part. Until it is done the index must not
// be used. It is not inlined, for the size of the filter.
//
//go:noinline
func (ix *Index) Begin(snapshot []byte) error {
	ix.clearTables()
	if cap(ix.snapshot) < len(snapshot) {
		ix.snapshot = make([]byte, 0, len(snapshot)) // append would round up.
	}
	ix.snapshot = append(ix.snapshot[:0], snapshot...)
	l := &ix.loading
	var err error
	if ix.version, ix.secret, l.set, err = wire.OpenSnapshot(ix.snapshot); err != nil {
		return err
	}
	// The reader yields the parts of a snapshot in the order of its bytes.
	ix.loadHead(&l.set)
	ix.loadAccess(&l.set)
	l.next, l.planting, l.count = 0, false, l.set.Policies()
	ix.reserveTables(min(l.count, len(snapshot)/leastPolicy))
	ix.trie.resetTrie()
	return nil
}

// Continue continues a Load that Begin has started, and reports whether the index is ready. A call
// ends when the tables have grown by work elements. An element is a policy, a limit, a segment of a
// pattern and the like; a policy with its lists is read at once. It is not inlined, for the size of
// the filter.
//
//go:noinline
func (ix *Index) Continue(work int) (done bool, err error) {
	l := &ix.loading
	if !ix.loadPolicies(ix.countElements() + work) {
		return false, nil
	}
	ix.loadClasses(&l.set)
	ix.reading = l.set.Reading()
	l.set.Responses(&ix.responses)
	ix.loadShown(&l.set)
	return true, l.set.End()
}

// countElements returns the number of elements in the tables.
func (ix *Index) countElements() int {
	return len(ix.policies) + len(ix.limits) + len(ix.methods) + len(ix.headers) + len(ix.parts) +
		len(ix.clients) + len(ix.figures) + len(ix.places.nodes) +
		len(ix.trie.entries) + len(ix.trie.nodes) + len(ix.trie.gates)
}

// Snapshot returns the loaded message. It is good until the next Load.
func (ix *Index) Snapshot() []byte { return ix.snapshot }

// clearTables empties the tables and keeps their memory.
func (ix *Index) clearTables() {
	ix.sources, ix.tiers, ix.tierSources = ix.sources[:0], ix.tiers[:0], ix.tierSources[:0]
	ix.policies, ix.limits, ix.runs = ix.policies[:0], ix.limits[:0], ix.runs[:0]
	ix.methods, ix.headers, ix.parts = ix.methods[:0], ix.headers[:0], ix.parts[:0]
	ix.clients, ix.figures, ix.show = ix.clients[:0], ix.figures[:0], ix.show[:0]
	ix.banned, ix.exempt, ix.exemptMethods = ix.banned[:0], ix.exempt[:0], ix.exemptMethods[:0]
	ix.adaptives = ix.adaptives[:0]
	ix.classes, ix.reserves, ix.rest = ix.classes[:0], ix.reserves[:0], 0
	clear(ix.commits)
	ix.commits, ix.also = ix.commits[:0], ix.also[:0]
	ix.exempted.resetTrie()
	ix.places.resetTrie()
	ix.penalties, ix.wide = ix.penalties[:0], ix.wide[:0]
	ix.enforcement.resetOrders()
	ix.needsClientIP, ix.asksEnvoy = false, false
}

func (ix *Index) loadHead(set *wire.SetReader) {
	ix.head = set.Head(
		func(kind policy.SourceKind, name wire.Ref) {
			ix.sources = append(ix.sources, ix.placeOf(kind, name))
			ix.needsClientIP = ix.needsClientIP || kind == policy.SourceClientIP
			ix.asksEnvoy = ix.asksEnvoy || kind.AsksEnvoy()
		},
		func(name wire.Ref) { ix.tiers = append(ix.tiers, name) },
		func(kind policy.SourceKind, name wire.Ref) {
			ix.tierSources = append(ix.tierSources, ix.placeOf(kind, name))
		},
	)
	for i := range ix.tierSources {
		ix.resolveFound(&ix.tierSources[i])
	}
}

// resolveFound finds the consumer's source and the tier that a policy.SourceFound names, once for
// all requests.
func (ix *Index) resolveFound(s *source) {
	if s.kind != policy.SourceFound {
		return
	}
	from, tier := policy.Source{Name: string(ix.Text(s.name))}.Found()
	for i, one := range ix.sources {
		if one.kind == from.Kind && string(ix.Text(one.name)) == from.Name {
			s.consumer = uint8(i) + 1
		}
	}
	for i, ref := range ix.tiers {
		if string(ix.Text(ref)) == tier {
			s.tier = uint8(i)
		}
	}
}

func (ix *Index) loadAccess(set *wire.SetReader) {
	var path [1]wire.Ref
	set.Access(
		func(r policy.Range) { ix.banned = append(ix.banned, r) },
		func(r policy.Range) { ix.exempt = append(ix.exempt, r) },
		func(r wire.Ref) {
			path[0] = r
			ix.exempted.insertPolicy(ix.snapshot, 0, nil, path[:])
		},
		func(r wire.Ref) { ix.exemptMethods = append(ix.exemptMethods, r) },
		func(r wire.Ref) { ix.exempted.childOf(ix.snapshot, hostsRoot, consumer, r) },
	)
	ix.needsClientIP = ix.needsClientIP || len(ix.banned) > 0 || len(ix.exempt) > 0
}

// leastPolicy is less than the bytes of any policy in a snapshot. It bounds the reserved memory by
// the snapshot's length, not by the number of policies that the snapshot claims.
const leastPolicy = 16

// reserveTables reserves memory for n policies, each with one limit, one pattern and one part of
// the partition, as most have. Tables that grow one policy at a time leave as much garbage as they
// hold, and the memory of a module never shrinks.
func (ix *Index) reserveTables(n int) {
	if n <= cap(ix.policies) {
		return
	}
	ix.policies = make([]Policy, 0, n)
	ix.limits = make([]policy.Limit, 0, n)
	ix.runs = make([]uint32, 0, 2*n)
	ix.parts = make([]part, 0, n)
	ix.trie.reserveNodes(n)
}

// loading is a Load under way, with the policy that is being loaded.
type loading struct {
	Policy
	hosts, paths []wire.Ref
	// firstLimit is the index of the policy's first limit.
	firstLimit int
	// set reads the snapshot. count is its number of policies, next the index of this policy.
	set         wire.SetReader
	count, next int
	// planting means that the policy is read, and that its patterns are being put into the trie,
	// behind gates for its conditions. Patterns with an index below pattern are already there.
	planting   bool
	pattern    int
	conditions []condition
}

// loadPolicies reads policies until all are read, which it reports, or until the tables have most
// elements. There may be thousands of policies, so it makes the functions for their parts once.
func (ix *Index) loadPolicies(most int) (all bool) {
	l := &ix.loading
	set := &l.set
	run := func() { ix.runs = append(ix.runs, uint32(len(ix.limits))) }
	limit := func(one policy.Limit) { ix.limits = append(ix.limits, one) }
	host := func(r wire.Ref) { l.hosts = append(l.hosts, r) }
	method := func(r wire.Ref) { ix.methods = append(ix.methods, r) }
	path := func(r wire.Ref) { l.paths = append(l.paths, r) }
	header := func(op policy.HeaderOp, name, value wire.Ref) {
		ix.headers = append(ix.headers, headerMatch{op, ix.placeOf(policy.SourceHeader, name), value})
	}
	component := func(kind policy.PartKind, name wire.Ref) { ix.addPart(l, kind, name) }
	client := func(r policy.Range) {
		ix.clients = append(ix.clients, r)
		ix.needsClientIP = true
	}
	own := func(index int, f wire.OwnFigures) {
		at := l.firstLimit + index
		ix.figures = append(ix.figures, figures{uint32(at), ix.figureOf(f.Quota), ix.figureOf(f.Burst)})
		ix.limits[at].Own = 1
	}
	inFlight := func(index int, hold quota.Span) {
		one := &ix.limits[l.firstLimit+index]
		*one = one.AsInFlight(hold)
		l.InFlight = true
	}
	commit := func(c *policy.Commit) {
		ix.commits = append(ix.commits, foundBy(c))
		ix.also = append(ix.also, wire.Budgets{})
		l.commit = uint16(len(ix.commits))
	}
	also := func(budgets wire.Budgets) {
		if l.commit > 0 {
			ix.also[l.commit-1] = budgets
		}
	}
	kept := func(class uint8) { ix.reserves = append(ix.reserves, class) }
	rule := func(p penalty.Rule) { ix.addPenalty(l, p) }
	adaptive := func(a policy.Adaptive) {
		ix.adaptives = append(ix.adaptives, a)
		ix.needsClientIP, l.adaptive = true, uint16(len(ix.adaptives))
	}
	for l.next < l.count && !set.Failed() {
		// Read each policy and plant its patterns.
		if !l.planting {
			ix.beginPolicy(l)
			l.PolicyHead = set.Policy(run, limit)
			run() // The end of the last run.
			set.Lists(host, method, path, header, component)
			l.tiers, l.ContentType = set.Parts(client, own, inFlight, kept, adaptive, commit, also, rule)
			ix.loadRoots(l)
			l.planting, l.pattern = true, 0
			l.conditions = ix.loadConditions(&l.Policy, l.conditions)
		}
		if !ix.plantPatterns(l, most) || ix.countElements() >= most && l.next < l.count {
			return false
		}
	}
	return true
}

// addPart adds a part of the partition of the current policy.
func (ix *Index) addPart(l *loading, kind policy.PartKind, name wire.Ref) {
	ix.parts = append(ix.parts, ix.partOf(kind, name))
	ix.needsClientIP = ix.needsClientIP || kind == policy.PartClientIP
	l.needsTier = l.needsTier || kind == policy.PartTier
	l.ByConsumer = l.ByConsumer || kind == policy.PartConsumer
}

// plantPatterns puts the patterns of a policy into the trie. It reports whether all are there
// before the tables have most elements. The patterns of a policy that is off are also there,
// because operators may switch it on.
func (ix *Index) plantPatterns(l *loading, most int) (all bool) {
	for count := patternCount(l.hosts, l.paths); l.pattern < count; l.pattern++ {
		if l.pattern > 0 && ix.countElements() >= most {
			return false
		}
		ix.trie.insertPattern(ix.snapshot, uint32(l.next), l.pattern, l.hosts, l.paths, l.conditions)
	}
	l.planting = false
	l.next++
	return true
}

// addPenalty adds the penalty rule of the current policy.
func (ix *Index) addPenalty(l *loading, p penalty.Rule) {
	ix.penalties = append(ix.penalties, p)
	l.penalty = uint16(len(ix.penalties)) // There are at most policy.MaxPolicies.
	if p.All && len(ix.wide) < policy.MaxWide {
		ix.wide = append(ix.wide, uint32(len(ix.policies)))
	}
}

// beginPolicy records where the lists of the next policy start.
func (ix *Index) beginPolicy(l *loading) {
	l.hosts, l.paths = l.hosts[:0], l.paths[:0]
	l.firstLimit = len(ix.limits)
	l.Policy = Policy{}
	l.runs.from = uint32(len(ix.runs))
	l.methods.from = uint32(len(ix.methods))
	l.headers.from = uint32(len(ix.headers))
	l.parts.from = uint32(len(ix.parts))
	l.clients.from = uint32(len(ix.clients))
	l.reserves.from = uint32(len(ix.reserves))
}

// endPolicy records where the lists end, and returns the policy.
func (ix *Index) endPolicy(l *loading) Policy {
	l.runs.to = uint32(len(ix.runs))
	l.methods.to = uint32(len(ix.methods))
	l.headers.to = uint32(len(ix.headers))
	l.parts.to = uint32(len(ix.parts))
	l.clients.to = uint32(len(ix.clients))
	l.reserves.to = uint32(len(ix.reserves))
	l.needsTier = l.needsTier || l.ByTier || l.tiers != 0
	return l.Policy
}

// loadRoots ends the current policy, and sets the roots of its limits.
func (ix *Index) loadRoots(l *loading) {
	ix.policies = append(ix.policies, ix.endPolicy(l))
	p := &l.Policy
	for i := uint32(0); i <= p.candidateRun() && !l.set.Failed(); i++ {
		run := ix.runOf(p, i)
		policy.InheritSteps(ix.limits[run.from:run.to], nil, nil, 1+int(p.reserves.len()))
	}
	for i := range l.set.Roots() {
		ix.limits[l.firstLimit+i].Root = l.set.Root()
	}
}

// loadClasses reads the classes.
func (ix *Index) loadClasses(set *wire.SetReader) {
	l := &ix.loading
	n := set.Classes()
	for i := 0; i < n && !set.Failed(); i++ {
		ix.beginPolicy(l)
		name, rest, tiers := set.Class(
			func(r wire.Ref) { l.hosts = append(l.hosts, r) },
			func(r wire.Ref) { ix.methods = append(ix.methods, r) },
			func(r wire.Ref) { l.paths = append(l.paths, r) },
			func(op policy.HeaderOp, name, value wire.Ref) {
				ix.headers = append(ix.headers, headerMatch{op, ix.placeOf(policy.SourceHeader, name), value})
			},
			func(r policy.Range) {
				ix.clients = append(ix.clients, r)
				ix.needsClientIP = true
			})
		l.tiers = tiers
		ix.classes = append(ix.classes, class{Policy: ix.endPolicy(l), name: name})
		if rest {
			ix.rest = uint8(i)
			continue
		}
		ix.trie.insertPolicy(ix.snapshot, uint32(policy.MaxPolicies+i), l.hosts, l.paths)
	}
}

func (ix *Index) figureOf(f wire.OwnFigure) figure {
	return figure{ix.placeOf(f.Kind, f.Name), f.Default}
}

// placeOf returns a source with its slot.
func (ix *Index) placeOf(kind policy.SourceKind, name wire.Ref) source {
	return source{kind: kind, name: name, slot: ix.places.childOf(ix.snapshot, uint32(kind), literal, name)}
}

// partOf returns a part with its source.
func (ix *Index) partOf(kind policy.PartKind, name wire.Ref) part {
	from, ok := kind.Source()
	if !ok {
		return part{kind: kind}
	}
	return part{kind, ix.placeOf(from, name)}
}

func (ix *Index) loadShown(set *wire.SetReader) {
	for left := set.Shown(); left > 0; left-- {
		kind, name := set.ShownPart()
		ix.show = append(ix.show, ix.partOf(kind, name))
		ix.needsClientIP = ix.needsClientIP || kind == policy.PartClientIP
	}
}

// loadConditions returns the conditions of a policy that can be gates, in reused memory.
func (ix *Index) loadConditions(p *Policy, memory []condition) []condition {
	memory = memory[:0]
	for i := p.headers.from; i < p.headers.to && len(memory) < maxBehind; i++ {
		m := &ix.headers[i]
		if m.op == policy.HeaderEquals && m.value.Len <= policy.MaxText {
			memory = append(memory, condition{m.name.slot, m.value})
		}
	}
	return memory
}
