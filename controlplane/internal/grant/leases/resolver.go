package leases

import (
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// resolver turns the items of one request into what the store is asked for.
type resolver struct {
	service *Service
	items   []wire.LeaseItem
	// node has sent the request.
	node inflight.Node
	// answers are filled in, one for each item.
	answers []wire.LeaseAnswer
	// requested is the policy set that the items' indexes refer to.
	requested *policies.Compiled
	// deciding is the version in force for the node.
	deciding *policies.Compiled
	// other is the other version in force while one is rolled out, nil otherwise.
	other *policies.Compiled
	// current is the number of the version in force that is no draft.
	current uint64
	// nodes is how many nodes share the buckets.
	nodes int64
	// span is how late waiting requests may use their tokens.
	span quota.Span
	// overrides are what is known of the consumers that items name.
	overrides map[keyhash.Key]consumers.Knowledge
	// overridesAway is how long they could not be looked up while the rest of the store answers; 0
	// if they could be.
	overridesAway time.Duration
	// late: another replica has granted under newer figures, so overrides may have ended there
	// first.
	late bool
	// asked: the store was asked for grants.
	asked bool
}

// decideBy sets the versions in force.
func (r *resolver) decideBy(active policies.Active) {
	r.deciding, r.other = active.Deciding(r.requested.Version.Number)
	r.current = active.State.Current
}

// effective is the limit that an item means under one policy set.
type effective struct {
	policy *policy.Policy
	// limit is that of the policy, or the consumer's own, over all regions.
	limit policy.Limit
	// largest is limit, or what it is cut to where callers bring figures of their own.
	largest policy.Limit
	// ownRevision orders what a consumer has of its own, see resolver.effective.
	ownRevision uint64
}

// resolved is an item of a request with everything that its answer needs.
type resolved struct {
	effective
	// index is the item's index in the request.
	index int
	item  *wire.LeaseItem
	// tier is the tier whose limit it is; empty for a limit of all tiers.
	tier string
	// candidate: the limit is only tried.
	candidate bool
	// ask is what the store is asked for.
	ask Item
}

// buildAsks resolves the open items, whole groups each, and returns those that the store is to be
// asked for. It fills in the answers of the others.
func (r *resolver) buildAsks(open []int) []resolved {
	asks := make([]resolved, 0, len(open))
	for first := 0; first < len(open); {
		last := first
		for r.items[open[last]].Joined && last+1 < len(open) {
			last++
		}
		asks = r.appendGroup(asks, open[first:last+1])
		first = last + 1
	}
	return asks
}

// appendGroup appends what the store is asked for by a group. If an item of the group is not known,
// the store is asked for none, since the items belong to one request; the other items are granted
// nothing. Items whose consumer cannot be looked up are left out, as the store leaves out items of
// a part that is away.
func (r *resolver) appendGroup(asks []resolved, group []int) []resolved {
	before, known := len(asks), true
	for _, i := range group {
		it := &r.items[i]
		r.answers[i] = wire.LeaseAnswer{State: wire.ItemUnknown}
		if it.Position > 0 && r.overridesAway > 0 {
			r.answers[i] = unavailable(r.overridesAway)
			continue
		}
		one, ok := r.resolve(it)
		if ok && it.Kind != wire.KindClaim && one.limit.Suspended() {
			// No ledger sees the quota: what it has counted would be cut to 0.
			r.answers[i] = wire.LeaseAnswer{State: wire.ItemSuspended, NotBefore: quota.Never}
			known = false
			continue
		}
		if !ok || holds(asks[before:], it.Bucket) { // No node sends a group that has a bucket twice.
			known = false
			continue
		}
		one.index, one.ask.Group = i, group[0]+1
		asks = append(asks, one)
	}
	if !known {
		for _, one := range asks[before:] {
			r.answers[one.index] = wire.LeaseAnswer{State: wire.ItemGranted}
		}
		return asks[:before]
	}
	return asks
}

// holds reports whether items of a group have a bucket.
func holds(group []resolved, bucket keyhash.Key) bool {
	for i := range group {
		if group[i].ask.Bucket == bucket {
			return true
		}
	}
	return false
}

// resolve returns an item with its limit and what it asks of the store, whatever the node believes
// the figures to be. It reports false for a limit that is not known, or that the control plane does
// not grant. A settlement is made also if costs of the policy are known before by now: what was
// reserved was taken.
func (r *resolver) resolve(it *wire.LeaseItem) (resolved, bool) {
	if it.Kind == wire.KindClaim {
		return r.claim(it), true
	}
	by, ok := r.effective(it, r.deciding)
	if ok && it.Kind == wire.KindSettle && by.limit.Suspended() {
		// Its figures would cut what the ledger has counted to 0.
		by, ok = r.effective(it, r.requested)
		ok = ok && !by.limit.Suspended()
	}
	if !ok || by.limit.InFlight || !grants(it, by.policy.Mode) {
		return resolved{}, false
	}
	by.bring(it.Quota, it.Burst)
	one := resolved{effective: by, item: it, ask: Item{Bucket: it.Bucket, Kind: it.Kind, Ask: r.fullAsk(it, by)}}
	switch it.Kind {
	case wire.KindSettle:
		one.ask.Settles = Settlement{Name: it.Reserved, Nth: it.Nth, Actual: it.Actual}
	case wire.KindReturn:
		one.ask.Returns = Return{it.Reserved, it.Term, lease.Back{Unused: it.Returned, Used: it.Used}}
	default:
		one.tier, one.candidate = r.requested.TierOf(it.Limit), r.requested.IsCandidate(it.Limit)
		r.addTwin(&one)
	}
	return one, true
}

// addTwin adds the ask for the bucket's ledger under the other version in force, if there is one.
// Same: that version has the same limit, and one ledger serves both.
func (r *resolver) addTwin(one *resolved) (same bool) {
	if r.other == nil {
		return false
	}
	by, ok := r.effective(one.item, r.other)
	if !ok || by.policy.Mode == policy.ModeLocal {
		return false
	}
	if by.limit.Algorithm.Windowed() != one.limit.Algorithm.Windowed() {
		return false
	}
	if by.bring(one.item.Quota, one.item.Burst); by.limit.Suspended() {
		return false
	}
	twin := r.service.baseAsk(one.item.Bucket, by, r.other.Version.Number)
	if ask := &one.ask.Ask; by.sharesLedger(&one.effective, ask, &twin) && r.sameForEachCaller(by.policy, one.policy) {
		ask.Version = min(ask.Version, twin.Version) // One ledger serves both, and no epoch makes it stale.
		return true
	}
	one.ask.Twin = &twin
	one.ask.Draft = r.deciding.Version.Number != r.current
	return false
}

// baseAsk asks for a limit by its figures: the part of them that this region may grant.
func (s *Service) baseAsk(bucket keyhash.Key, by effective, version uint64) lease.Ask {
	part, _ := s.part(by.policy.Name)
	limit, largest := part.Of(by.limit), part.Of(by.largest)
	a := lease.Ask{
		Params:  limit.Params,
		Windows: largest.WindowsOf(bucket),
		Version: ledgerVersion(version, part.Epoch) + by.ownRevision,
		Owing:   by.policy.Commit.By != policy.CommitNever,
	}
	if by.largest.Own > 0 {
		a.Most = largest.Params
	}
	if limit.Params != by.limit.Params {
		a.Hold = lease.TTL(by.limit.Params)
	}
	return a
}

// fullAsk asks for what an item wants, by the figures of the version that decides. Items that want
// no tokens have the figures alone.
func (r *resolver) fullAsk(it *wire.LeaseItem, by effective) lease.Ask {
	a := r.service.baseAsk(it.Bucket, by, r.deciding.Version.Number)
	if it.Kind != wire.KindAsk && it.Kind != wire.KindReport {
		return a
	}
	a.Waiting = it.Waiting
	a.Cost = it.Cost
	a.Keep = min(it.Keep, a.Params.Burst)
	if a.Deadline = r.span; it.Soon {
		a.Deadline = min(r.span, lease.Soon)
	}
	a.Nodes = r.nodes
	switch mode := by.policy.Mode; {
	case mode == policy.ModeOptimistic: // A node reports what it used, or asks what it must not decide.
		a.Optimistic = true
		a.Keep = 0
		a.Used = it.Used
	case mode == policy.ModeStrict, a.Owing:
		a.Keep = 0 // No token idles on a node.
		a.Reserved = it.Reserved
	}
	if by.limit.Algorithm.Queues() {
		// A leaky bucket hands out turns at an exact rate. Tokens that are held for a lease until
		// its deadline would make the queue look longer than it is, and delay requests for nothing.
		a.Deadline = 0
	}
	return a
}
