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

// resolver converts the items of one request to asks for the store.
type resolver struct {
	service *Service
	items   []wire.LeaseItem
	// node is the sender of the request.
	node inflight.Node
	// answers has one answer for each item; the resolver fills them in.
	answers []wire.LeaseAnswer
	// requested is the policy set that the items' indexes refer to.
	requested *policies.Compiled
	// deciding is the version in force for the node.
	deciding *policies.Compiled
	// other is the other version in force during a rollout; nil otherwise.
	other *policies.Compiled
	// current is the number of the current version, not the draft's.
	current uint64
	// nodes is the number of nodes that share the buckets.
	nodes int64
	// span is the longest time in which waiting requests may use their tokens.
	span quota.Span
	// overrides has the knowledge of the consumers in the items.
	overrides map[keyhash.Key]consumers.Knowledge
	// overridesAway is how long the part of the store with consumers has not answered while the
	// rest does; 0 if it answers.
	overridesAway time.Duration
	// late is true if another replica has granted with newer figures: its overrides may have ended
	// earlier.
	late bool
	// asked is true once the store was asked for grants.
	asked bool
}

// decideBy sets the versions in force.
func (r *resolver) decideBy(active policies.Active) {
	r.deciding, r.other = active.Deciding(r.requested.Version.Number)
	r.current = active.State.Current
}

// effective is the limit of an item under one policy set.
type effective struct {
	policy *policy.Policy
	// limit is the policy's limit, or the consumer's own, over all regions.
	limit policy.Limit
	// largest equals limit, or is the largest limit if callers bring their own figures.
	largest policy.Limit
	// ownRevision orders a consumer's own limits, see resolver.effective.
	ownRevision uint64
}

// resolved is an item of a request with all data for its answer.
type resolved struct {
	effective
	// index is the item's index in the request.
	index int
	item  *wire.LeaseItem
	// tier is the tier of the limit; empty for a limit of all tiers.
	tier string
	// candidate is true for a limit of a candidate, which is only tried.
	candidate bool
	// ask is the ask for the store.
	ask Item
}

// buildAsks resolves the open items, in whole groups, and returns the asks for the store. It fills
// in the answers of items without an ask.
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

// appendGroup appends the asks of a group. If an item of the group is not known, the store gets no
// ask of the group, since the items belong to one request; the other items are granted nothing. An
// item whose consumer cannot be read is left out, as the store leaves out items of a part that is
// away.
func (r *resolver) appendGroup(asks []resolved, group []int) []resolved {
	before, known := len(asks), true
	for _, i := range group {
		it := &r.items[i]
		r.answers[i] = wire.LeaseAnswer{State: wire.ItemUnknown}
		if it.Position > 0 && r.overridesAway > 0 {
			r.answers[i] = unavailableAnswer(r.overridesAway)
			continue
		}
		one, ok := r.resolveItem(it)
		if ok && it.Kind != wire.KindClaim && one.limit.Suspended() {
			// No ledger may see this quota of 0: it would cut its counts to 0.
			r.answers[i] = wire.LeaseAnswer{State: wire.ItemSuspended, NotBefore: quota.Never}
			known = false
			continue
		}
		if !ok || hasBucket(asks[before:], it.Bucket) { // No node sends a group with the same bucket twice.
			known = false
			continue
		}
		one.index, one.ask.Group = i, group[0]+1
		asks = append(asks, one)
	}
	// An unknown item: the store is asked for none of the group.
	if !known {
		for _, one := range asks[before:] {
			r.answers[one.index] = wire.LeaseAnswer{State: wire.ItemGranted}
		}
		return asks[:before]
	}
	return asks
}

// hasBucket reports whether a group has an item for a bucket.
func hasBucket(group []resolved, bucket keyhash.Key) bool {
	for i := range group {
		if group[i].ask.Bucket == bucket {
			return true
		}
	}
	return false
}

// resolveItem returns an item with its limit and its ask, with the figures in force, whatever
// figures the node knows. ok is false for a limit that is not known, or that the control plane does
// not grant. A settlement is possible even if the policy now knows costs before: the reservation
// was taken.
func (r *resolver) resolveItem(it *wire.LeaseItem) (resolved, bool) {
	if it.Kind == wire.KindClaim {
		return r.resolveClaim(it), true
	}
	by, ok := r.effective(it, r.deciding)
	if ok && it.Kind == wire.KindSettle && by.limit.Suspended() {
		// Its figures would cut the ledger's counts to 0.
		by, ok = r.effective(it, r.requested)
		ok = ok && !by.limit.Suspended()
	}
	if !ok || by.limit.InFlight || !mayGrant(it, by.policy.Mode) {
		return resolved{}, false
	}
	by.bringFigures(it.Quota, it.Burst)
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

// addTwin adds the ask for the bucket's ledger under the other version in force, if there is
// another version. same is true if that version has the same limit, so that one ledger is used for
// both.
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
	if by.bringFigures(one.item.Quota, one.item.Burst); by.limit.Suspended() {
		return false
	}
	twin := r.service.baseAsk(one.item.Bucket, by, r.other.Version.Number)
	if ask := &one.ask.Ask; by.sharesLedger(&one.effective, ask, &twin) && r.sameForEachCaller(by.policy, one.policy) {
		ask.Version = min(ask.Version, twin.Version) // One ledger is used for both, and no epoch may make it stale.
		return true
	}
	one.ask.Twin = &twin
	one.ask.Draft = r.deciding.Version.Number != r.current
	return false
}

// baseAsk returns an ask with the figures of a limit: the part that this region may grant.
func (s *Service) baseAsk(bucket keyhash.Key, by effective, version uint64) lease.Ask {
	part, _ := s.partOf(by.policy.Name)
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

// fullAsk returns the ask of an item, with the figures of the deciding version. Items that want no
// tokens have only the figures.
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
	case mode == policy.ModeOptimistic: // A node reports its use, or asks for a request that it must not decide.
		a.Optimistic = true
		a.Keep = 0
		a.Used = it.Used
	case mode == policy.ModeStrict, a.Owing:
		a.Keep = 0 // No token idles on a node.
		a.Reserved = it.Reserved
	}
	if by.limit.Algorithm.Queues() {
		// A leaky bucket gives out turns at an exact rate. Tokens of a lease that wait for its
		// deadline would make the queue look longer than it is, and delay requests for nothing.
		a.Deadline = 0
	}
	return a
}
