package leases

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Overrides provides the limits of single consumers. *consumers.Service implements it.
type Overrides interface {
	// ExceptionsRevision returns the highest known revision of consumers' exceptions.
	ExceptionsRevision() uint64
	// Known returns the knowledge of each consumer; empty for an unknown consumer.
	Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]consumers.Knowledge, error)
	// Refresh reads the newest state from the store, for ExceptionsRevision and Known.
	Refresh(ctx context.Context) error
}

// skew is the largest difference between the clocks of replicas. When an override has ended on one
// replica, other replicas end it up to skew earlier by their own clocks.
const skew = 10 * time.Second

// boundless is the limit of a consumer that a policy does not limit, for a node that does not know
// that yet: each second it admits more than the highest cost of a request.
var boundless, _ = policy.NewLimit(policy.Counting{}, 2*policy.MaxCost, quota.Second, 0)

func (s *Service) refreshOverrides(ctx context.Context) error {
	if s.config.Overrides == nil {
		return nil
	}
	return s.config.Overrides.Refresh(ctx)
}

// loadOverrides reads the consumers of items. If only the part of the store that keeps consumers is
// away, it returns for how long. Any other error concerns the whole store.
func (s *Service) loadOverrides(ctx context.Context, items []wire.LeaseItem) (
	known map[keyhash.Key]consumers.Knowledge, away time.Duration, err error,
) {
	var keys []keyhash.Key
	for i := range items {
		if items[i].Position > 0 {
			keys = append(keys, items[i].Consumer)
		}
	}
	if len(keys) == 0 || s.config.Overrides == nil {
		return nil, 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience()/2) // The rest of the time is for the rest of the store.
	defer cancel()
	known, err = s.config.Overrides.Known(ctx, keys)
	var part *docs.AwayError
	if errors.As(err, &part) {
		return nil, max(part.For, time.Microsecond), nil
	}
	return known, 0, err
}

// Own returns the limits of a consumer under a policy of a set, and the revision to add to the
// version of their figures. These are the given limits of the policy, or the consumer's own limits
// in their place. A nil consumer has the policy's limits. The revision of a consumer without limits
// of its own is 0, unless late is true: then the bucket has turned out to belong to a consumer that
// had own limits.
func (s *Service) Own(
	ctx context.Context, set *policy.Set, p *policy.Policy, consumer *keyhash.Key, limits []policy.Limit, late bool,
) ([]policy.Limit, uint64, error) {
	if s.config.Overrides == nil || consumer == nil || !p.ByConsumer() {
		return limits, 0, nil
	}
	all, err := s.config.Overrides.Known(ctx, []keyhash.Key{*consumer})
	if err != nil {
		return nil, 0, err
	}
	own, ownRevision, overridden := ownLimits(all[*consumer], set, p, s.config.Now(), late)
	if overridden {
		limits = own
	}
	return limits, ownRevision, nil
}

// ownLimits returns the limits of a consumer that replace a policy's limits, if the policy is
// overridden, and their revision: even while they are in force, and odd once they have ended. The
// revision of a consumer that never had own limits is 0, unless late is true.
func ownLimits(
	known consumers.Knowledge, set *policy.Set, p *policy.Policy, now time.Time, late bool,
) (own []policy.Limit, ownRevision uint64, overridden bool) {
	ownRevision = 2 * known.ExceptionsRevision
	o := known.Override(p.Name, now)
	switch {
	case o == nil && len(known.Overrides) > 0:
		return nil, ownRevision + 1, false
	case o == nil && !late:
		return nil, 0, false
	case o == nil:
		return nil, ownRevision, false
	}
	// An override has no effect if it no longer fits the policy's counting.
	own, err := o.Of(set, p)
	return own, ownRevision, err == nil
}

// effective returns the limit of an item under a policy set: the policy's limit, or the consumer's
// own limit in its place. ok is false for an unknown limit or consumer.
//
// The own revision is added to the version of the figures. It orders the changes of a consumer's
// own limits: it is even while own limits are in force, and odd once they have ended. An item
// without a consumer comes from a node that uses the policy's limit, as of the revision in the
// item. That revision counts only once the bucket turns out to belong to a consumer with own limits
// (late). Until then, changes of consumers that a node does not know yet make no other bucket
// stale.
func (r *resolver) effective(it *wire.LeaseItem, set *policies.Compiled) (effective, bool) {
	p, limit, ok := r.requested.Resolve(it.Limit, set)
	by := effective{policy: p, limit: limit}
	overrides := r.service.config.Overrides
	if !ok || overrides == nil || !p.ByConsumer() {
		return by, ok
	}
	// Without a consumer the policy's limit is used.
	if it.Position == 0 {
		if r.late {
			by.ownRevision = 2 * min(it.ExceptionsRevision, overrides.ExceptionsRevision())
		}
		return by, true
	}
	// With a consumer its own limits are used, if it has some.
	known, found := r.overrides[it.Consumer]
	if !found {
		return by, false
	}
	now := r.service.config.Now()
	if r.late {
		now = now.Add(skew)
	}
	own, ownRevision, overridden := ownLimits(known, set.Set, p, now, r.late)
	by.ownRevision = ownRevision
	if !overridden {
		if tier := slices.Index(set.Set.Tiers, known.Tier); tier >= 0 && it.Position == wire.TierGuessed {
			own = p.LimitsOf(tier)
		} else {
			return by, true
		}
	}
	if by.limit, ok = p.Find(own, &policy.Limit{Root: it.Root}, 0); !ok {
		by.limit = boundless
	}
	return by, true
}
