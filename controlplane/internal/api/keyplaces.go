package api

import (
	"context"
	"iter"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// place is one bucket of a key.
type place struct {
	leases.Key
	tier string
	// limit is the one in force, the consumer's own if it has one.
	limit policy.Limit
}

// places are the key's buckets: of each tier and limit, those in shadow if the policy is watched
// for the key.
func (s *server) places(ctx context.Context, k bucketKey) (all []place, err error) {
	shadow := k.partition.Share() >= int(k.policy.Enforced) // What is off has the buckets of what is enforced.
	for tier, limits := range k.limitsByTier() {
		own, _, err := s.config.Leases.Own(ctx, k.by.Set, k.policy, k.person, limits, false)
		if err != nil {
			return nil, err
		}
		for n, limit := range own {
			key := leases.Key{By: k.by, Policy: k.policy, Limits: limits, Consumer: k.person, Limit: limit,
				Step: k.policy.StepOf(own, n), Bucket: k.partition.Bucket(tier, own, n, shadow),
				Cost: k.policy.Cost.Fixed}
			all = append(all, place{Key: key, tier: tier, limit: limit})
		}
	}
	return all, nil
}

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

// buckets are the hashes of all that requests with the key may spend from: of each tier and limit,
// enforced or in shadow.
func (k bucketKey) buckets() (all []keyhash.Key) {
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

// eachOnce are the indexes of places that have all buckets, each once: where a consumer has one for
// several tiers, that of the tier that allows most.
func eachOnce(places []place) (once []int) {
	for i := range places {
		at := slices.IndexFunc(once, func(other int) bool { return places[other].Bucket == places[i].Bucket })
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
