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
	// limit is the one in force, the consumer's own if it has one.
	limit policy.Limit
	// version is the one whose nodes it decides for, 0 for all nodes.
	version uint64
}

// drafts is 1 for a ledger of a version that is rolled out, beside the one of the other nodes.
func (at *place) drafts() int {
	if at.Twin != nil {
		return 1
	}
	return 0
}

func (at *place) isLocal() bool { return at.Policy.Mode == policy.ModeLocal }

// changeable reports whether a bucket can be filled. What nodes have in flight ends by itself, a
// quota of 0 has no bucket, and buckets of local policies can be reset alone.
func (at *place) changeable(c lease.Change) bool {
	return !at.limit.InFlight && !at.limit.Suspended() && (c.Reset || !at.isLocal())
}

// sameLedger reports whether two places are of one ledger.
func (at *place) sameLedger(other *place) bool {
	return at.Bucket == other.Bucket && (at.Twin == nil) == (other.Twin == nil) &&
		at.limit.Algorithm.Windowed() == other.limit.Algorithm.Windowed() && at.isLocal() == other.isLocal()
}

// places are the key's buckets: of each tier and limit, and where they differ of each version in
// force.
func (s *server) places(ctx context.Context, k bucketKey) (all []place, err error) {
	all, err = s.placesOf(ctx, k, k.only)
	if err != nil || k.drafted == nil {
		return all, err
	}
	theirs, err := s.placesOf(ctx, *k.drafted, k.drafted.by.Version.Number)
	if err != nil {
		return nil, err
	}
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
	for i := range shared {
		if !shared[i] {
			all[i].version = k.by.Version.Number
		}
	}
	return all, nil
}

// placesOf are the key's buckets in one version: those in shadow if the policy is watched for the
// key.
func (s *server) placesOf(ctx context.Context, k bucketKey, version uint64) (all []place, err error) {
	for tier, limits := range k.limitsByTier() {
		own, _, err := s.config.Leases.Own(ctx, k.by.Set, k.policy, k.person, limits, false)
		if err != nil {
			return nil, err
		}
		// What is off has the buckets of what is enforced.
		shadow := k.partition.Share() >= int(s.enforcedFor(k.policy, tier, k.partition.Share()))
		for n, limit := range own {
			key := leases.Key{By: k.by, Policy: k.policy, Limits: limits, Consumer: k.person, Limit: limit,
				Step: k.policy.StepOf(own, n), Bucket: k.partition.Bucket(tier, own, n, shadow),
				Cost: k.policy.Cost.Fixed}
			all = append(all, place{Key: key, tier: tier, limit: limit, version: version})
		}
	}
	return all, nil
}

// enforcedFor is how a policy is enforced for keys of a share whose callers have a tier: by the
// most specific order about them, and without one as the document has it.
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

// states are what orders say, as policies have it.
var states = map[enforcement.State]policy.Enforced{enforcement.Enforce: policy.EnforcedAll,
	enforcement.Shadow: policy.EnforcedShadow, enforcement.Off: policy.EnforcedOff}

// limitsByTier are the limits of the policy: of each tier under its name, or those of all tiers
// under none.
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

// buckets are the hashes of all that requests with the key may spend from: of each version, tier
// and limit, enforced or in shadow.
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

// eachOnce are the indexes of places that have all ledgers, each once: where a consumer has one for
// several tiers, that of the tier that allows most. Those of a version that is rolled out come
// first: one that no node has used yet begins as the other one, before that is changed.
func eachOnce(places []place) (once []int) {
	defer func() {
		slices.SortStableFunc(once, func(a, b int) int {
			return cmp.Compare(places[b].drafts(), places[a].drafts())
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
