package leases

import (
	"context"
	"math"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Twin compares a bucket under the version that is rolled out, for a tier, with the same bucket
// under the other nodes' version. same is true if both use one ledger and one limit. twin is the
// ask for the other ledger if the bucket has two ledgers, nil otherwise: see Key.Twin. The error is
// ErrStale if the key's version is not rolled out.
func (s *Service) Twin(ctx context.Context, k Key, tier string) (same bool, twin *lease.Ask, err error) {
	active, _ := s.config.Sets.Active()
	if active.Draft == nil || !active.Draft.Version.Is(&k.By.Version) {
		return false, nil, ErrStale
	}
	// Resolve the limit under both versions, as for a node's item.
	it := wire.LeaseItem{Bucket: k.Bucket, Limit: k.By.NumberOf(k.Policy, tier, &k.Limit, k.Step), Cost: 1}
	r := &resolver{service: s, requested: k.By, nodes: 1}
	r.decideBy(active)
	if k.Consumer != nil && s.config.Overrides != nil {
		it.Position, it.Consumer, it.Root, it.ExceptionsRevision = 1, *k.Consumer, k.Limit.Root, math.MaxUint64
		var known map[keyhash.Key]consumers.Knowledge
		if known, err = s.config.Overrides.Known(ctx, []keyhash.Key{it.Consumer}); err != nil {
			return false, nil, err
		}
		r.overrides = known
	}
	by, ok := r.effective(&it, r.deciding)
	if !ok || by.policy.Mode == policy.ModeLocal {
		return false, nil, nil
	}
	if by.limit.InFlight || by.limit.Suspended() { // Permits have one ledger, whatever the limit.
		other, ok := r.effective(&it, r.other)
		return ok && other.policy.Mode != policy.ModeLocal && other.limit == by.limit, nil, nil
	}
	by.bringFigures(0, 0)
	one := resolved{effective: by, item: &it, ask: Item{Bucket: k.Bucket, Ask: r.fullAsk(&it, by)}}
	same = r.addTwin(&one)
	return same, one.ask.Twin, nil
}
