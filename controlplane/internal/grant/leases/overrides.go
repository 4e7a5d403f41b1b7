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

// Overrides are the limits that consumers have of their own. *consumers.Service implements it.
type Overrides interface {
	// ExceptionsRevision is the highest known revision of consumers' exceptions.
	ExceptionsRevision() uint64
	// Known returns what is known of each consumer; an entry for an unknown consumer is empty.
	Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]consumers.Knowledge, error)
	// Refresh reads the newest state from the store, for ExceptionsRevision and Known.
	Refresh(ctx context.Context) error
}

// skew is how far apart the clocks of replicas may be for an override to end on all of them once
// one has found it ended.
const skew = 10 * time.Second

// boundless is the limit of a consumer whom a policy does not limit, for a node that does not know
// that yet: each second it admits more than any request may cost.
var boundless, _ = policy.NewLimit(policy.Counting{}, 2*policy.MaxCost, quota.Second, 0)

func (s *Service) refreshOverrides(ctx context.Context) error {
	if s.config.Overrides == nil {
		return nil
	}
	return s.config.Overrides.Refresh(ctx)
}

// loadOverrides looks up the consumers that items name. If only the part of the store that keeps
// them is away, it returns for how long. Any other error concerns the whole store.
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
	ctx, cancel := context.WithTimeout(ctx, s.patience()/2) // The rest of the store still has to be asked.
	defer cancel()
	known, err = s.config.Overrides.Known(ctx, keys)
	var part *docs.AwayError
	if errors.As(err, &part) {
		return nil, max(part.For, time.Microsecond), nil
	}
	return known, 0, err
}

// Own returns the limits of a consumer under a policy of a set, and the revision to add to the
// version of their figures: the given limits, which are the policy's, or the consumer's own in
// place of them. A nil consumer has the policy's. The revision of a consumer without limits of its
// own is 0 unless late: then the bucket has turned out to have been one of a consumer with own
// limits.
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

// ownLimits returns the limits that a consumer has under a policy in place of the policy's, if it
// is overridden, and their revision: even while they are in force and odd once they have ended. The
// revision of a consumer that never had any is 0 unless late.
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
	// An override that does not fit the policy's counting, since that was changed, has no effect.
	own, err := o.Of(set, p)
	return own, ownRevision, err == nil
}

// effective returns the limit that an item means under a policy set: the policy's, or the one that
// the consumer has in its place. It reports false for an unknown limit or consumer.
//
// The own revision, which is added to the version of the figures, orders what a consumer has of its
// own: it is even while own limits are in force and odd once they have ended. An item that names no
// consumer comes from a node that knows the limit to be the policy's, as of the revision that the
// item carries. That one counts only once the bucket turns out to be one of a consumer with own
// limits (late). Until then changes of consumers that a node has not heard of yet make no other
// bucket stale.
func (r *resolver) effective(it *wire.LeaseItem, set *policies.Compiled) (effective, bool) {
	p, limit, ok := r.requested.Resolve(it.Limit, set)
	by := effective{policy: p, limit: limit}
	overrides := r.service.config.Overrides
	if !ok || overrides == nil || !p.ByConsumer() {
		return by, ok
	}
	if it.Position == 0 {
		if r.late {
			by.ownRevision = 2 * min(it.ExceptionsRevision, overrides.ExceptionsRevision())
		}
		return by, true
	}
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
