package api

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
)

// place is one bucket of a key.
type place struct {
	leases.Key
	tier string
	// limit is the limit in force. The consumer's own limit has priority.
	limit policy.Limit
	// version is the version for whose nodes it decides, 0 for all nodes.
	version uint64
}

// countDrafts returns 1 if the ledger belongs to a rollout's version and has a twin for the other
// nodes.
func (at *place) countDrafts() int {
	if at.Twin != nil {
		return 1
	}
	return 0
}

func (at *place) isLocal() bool { return at.Policy.Mode == policy.ModeLocal }

// canChange reports whether a change can fill the bucket. Requests in flight end by themselves, a
// quota of 0 has no bucket, and buckets of local policies can only be reset.
func (at *place) canChange(c lease.Change) bool {
	return !at.limit.InFlight && !at.limit.Suspended() && (c.Reset || !at.isLocal())
}

// sameLedger reports whether two places are of one ledger.
func (at *place) sameLedger(other *place) bool {
	return at.Bucket == other.Bucket && (at.Twin == nil) == (other.Twin == nil) &&
		at.limit.Algorithm.Windowed() == other.limit.Algorithm.Windowed() && at.isLocal() == other.isLocal()
}

// placesOfKey returns the buckets of the key: of each tier and limit, and of each version in force
// if the versions differ.
func (s *server) placesOfKey(ctx context.Context, k bucketKey) (all []place, err error) {
	// Read the buckets of the first version.
	all, err = s.placesOf(ctx, k, k.only)
	if err != nil || k.drafted == nil {
		return all, err
	}
	theirs, err := s.placesOf(ctx, *k.drafted, k.drafted.by.Version.Number)
	if err != nil {
		return nil, err
	}
	// Add the buckets of the draft that the versions do not share.
	own := len(all)
	shared := make([]bool, own)
	for _, at := range theirs {
		beside := slices.IndexFunc(all[:own], func(one place) bool {
			return one.Bucket == at.Bucket && one.tier == at.tier && one.limit.InFlight == at.limit.InFlight
		})
		same := at.isLocal() && beside >= 0 && all[beside].isLocal() && all[beside].limit == at.limit
		if !at.isLocal() {
			if same, at.Twin, err = s.config.Leases.Twin(ctx, at.Key, at.tier); err != nil {
				return nil, err
			}
		}
		if same && beside >= 0 {
			shared[beside] = true
			continue
		}
		all = append(all, at)
	}
	// A bucket that the versions do not share decides for the nodes of its version.
	for i := range shared {
		if !shared[i] {
			all[i].version = k.by.Version.Number
		}
	}
	return all, nil
}

// placesOf returns the buckets of the key in one version. If the policy is in shadow for the key,
// they are the shadow buckets.
func (s *server) placesOf(ctx context.Context, k bucketKey, version uint64) (all []place, err error) {
	for tier, limits := range k.limitsByTier() {
		own, _, err := s.config.Leases.Own(ctx, k.by.Set, k.policy, k.consumer, limits, false)
		if err != nil {
			return nil, err
		}
		// A policy that is off has the same buckets as an enforced policy.
		shadow := k.partition.Share() >= int(s.enforcedFor(k.policy, tier, k.partition.Share()))
		for n, limit := range own {
			key := leases.Key{By: k.by, Policy: k.policy, Limits: limits, Consumer: k.consumer, Limit: limit,
				Step: k.policy.StepOf(own, n), Bucket: k.partition.Bucket(tier, own, n, shadow),
				Cost: k.policy.Cost.Fixed}
			all = append(all, place{Key: key, tier: tier, limit: limit, version: version})
		}
	}
	return all, nil
}

// enforcedFor returns how a policy is enforced for keys of a share whose callers have a tier. The
// most specific order decides; without an order the document decides.
func (s *server) enforcedFor(p *policy.Policy, tier string, share int) policy.Enforced {
	held, _, err := s.config.Enforcement.Held()
	if err != nil {
		return p.Enforced
	}
	now := s.config.Now()
	for _, about := range [...][2]string{{p.Name, tier}, {p.Name, ""}, {"", tier}, {"", ""}} {
		for _, o := range held.Orders.List {
			if o.Policy == about[0] && o.Tier == about[1] && share < o.Percent && o.InForce(now) {
				return states[o.State]
			}
		}
	}
	return p.Enforced
}

// states maps the states of orders to the states of policies.
var states = map[enforcement.State]policy.Enforced{enforcement.Enforce: policy.EnforcedAll,
	enforcement.Shadow: policy.EnforcedShadow, enforcement.Off: policy.EnforcedOff}

// limitsByTier iterates over the policy's limits, by the name of the tier. A policy without limits
// for tiers has one element with an empty name.
func (k bucketKey) limitsByTier() iter.Seq2[string, []policy.Limit] {
	return func(yield func(string, []policy.Limit) bool) {
		if len(k.policy.Tiers) == 0 {
			yield("", k.policy.Limits)
			return
		}
		for i, tier := range k.by.Set.Tiers {
			if !yield(tier, k.policy.LimitsOf(i)) {
				return
			}
		}
	}
}

// buckets returns the hashes of all buckets that requests with the key may use: of each version,
// tier and limit, enforced or in shadow.
func (k bucketKey) buckets() (all []keyhash.Key) {
	if k.drafted != nil {
		all = k.drafted.buckets()
	}
	for tier, limits := range k.limitsByTier() {
		for n := range limits {
			for _, shadow := range []bool{false, true} {
				if one := k.partition.Bucket(tier, limits, n, shadow); !slices.Contains(all, one) {
					all = append(all, one)
				}
			}
		}
	}
	return all
}

// eachOnce returns the indexes of places that together have all ledgers, each once. If several
// tiers of a consumer share a ledger, it returns the place with the largest burst. The ledgers of a
// rollout's version come first: a ledger that no node has used yet begins as a copy of its twin, so
// its change must come before the twin's change.
func eachOnce(places []place) (once []int) {
	defer func() {
		slices.SortStableFunc(once, func(a, b int) int {
			return cmp.Compare(places[b].countDrafts(), places[a].countDrafts())
		})
	}()
	for i := range places {
		at := slices.IndexFunc(once, func(other int) bool { return places[other].sameLedger(&places[i]) })
		switch {
		case at < 0:
			once = append(once, i)
		case places[i].limit.Params.Burst > places[once[at]].limit.Params.Burst:
			once[at] = i
		}
	}
	return once
}

func placesAt(places []place, indexes []int) (some []place) {
	for _, i := range indexes {
		some = append(some, places[i])
	}
	return some
}
