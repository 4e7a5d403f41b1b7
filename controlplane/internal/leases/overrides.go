package leases

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Overrides are the limits that consumers have of their own. *consumers.Service implements it.
type Overrides interface {
	// Turn is the highest known turn: it counts the changes of overrides.
	Turn() uint64
	// Known returns what is known of each consumer; an entry for an unknown consumer is empty.
	Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]consumers.Knowledge, error)
	// Refresh reads the newest state from the store, for Turn and Known.
	Refresh(ctx context.Context) error
}

func (s *Service) refreshPeople(ctx context.Context) error {
	if s.config.Overrides == nil {
		return nil
	}
	return s.config.Overrides.Refresh(ctx)
}

// know looks up the consumers that items name. They may be kept by a part of the store that is away while the rest answers: then it
// returns for how long. Any other error is the whole store's.
func (s *Service) know(ctx context.Context, items []wire.LeaseItem) (known map[keyhash.Key]consumers.Knowledge, away time.Duration, err error) {
	var keys []keyhash.Key
	for i := range items {
		if items[i].Place > 0 {
			keys = append(keys, items[i].Consumer)
		}
	}
	if len(keys) == 0 || s.config.Overrides == nil {
		return nil, 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience/2) // The rest of the store still has to be asked.
	defer cancel()
	known, err = s.config.Overrides.Known(ctx, keys)
	var part *consumers.AwayError
	if errors.As(err, &part) {
		return nil, max(part.For, time.Microsecond), nil
	}
	return known, 0, err
}

// unavailable answers an item of which what keeps it has not answered for a time.
func unavailable(away time.Duration) wire.LeaseAnswer {
	return wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: quota.Span(max(away.Microseconds(), 1))}
}

// Own are the limits that somebody has under a policy, and the turn as of which that is known, to be added to the version of figures:
// the given ones, the policy's, for all but consumers that have their own. Person is nil for nobody. The turn of who has none is 0
// unless late: the bucket has turned out to have been somebody's who had.
func (s *Service) Own(ctx context.Context, p *policy.Policy, person *keyhash.Key, limits []policy.Limit, late bool) ([]policy.Limit, uint64, error) {
	if s.config.Overrides == nil || person == nil || !p.ByConsumer() {
		return limits, 0, nil
	}
	all, err := s.config.Overrides.Known(ctx, []keyhash.Key{*person})
	if err != nil {
		return nil, 0, err
	}
	own, turn, overridden := ownLimits(all[*person], p, s.config.Now(), late)
	if overridden {
		limits = own
	}
	return limits, turn, nil
}

// ownLimits are those that a consumer has under a policy in place of the policy's, if it is overridden, and the turn as of which that is
// known: even while they are in force and odd once they have ended. Of who never had any it is 0 unless late.
func ownLimits(known consumers.Knowledge, p *policy.Policy, now time.Time, late bool) (own []policy.Limit, turn uint64, overridden bool) {
	turn = 2 * known.Turn
	o := known.Override(p.Name, now)
	switch {
	case o == nil && len(known.Overrides) > 0:
		return nil, turn + 1, false
	case o == nil && !late:
		return nil, 0, false
	case o == nil:
		return nil, turn, false
	}
	own, err := o.Of(p)
	return own, turn, err == nil // What does not fit how the policy counts since a change of that sleeps.
}

// skew is how far apart the clocks of replicas may be for the end of an override to be the same to all: once one of them has found it
// ended, so do the others.
const skew = 10 * time.Second

// boundless is the limit of a consumer whom a policy does not limit, for a node that has not heard of it yet: more than any request
// may cost, each second.
var boundless, _ = policy.NewLimit(policy.Counting{}, 2*policy.MaxCost, quota.Second, 0)

// resolve is the limit that an item means under a policy set: the policy's, or at its place one that the consumer has in place of those. The turn, to
// be added to the version of the figures, orders what consumers have of their own: it is even while that is in force and odd once it
// has ended. An item that names nobody is of a node that knows the limit to be the policy's, as of the turn that it says; that turn
// counts only once the bucket turns out to have been somebody's with a limit of its own, so that all other buckets go on whatever
// changes of consumers a node has not heard of yet.
func (s *Service) resolve(it wire.LeaseItem, by terms, set *policies.Compiled) (p *policy.Policy, limit policy.Limit, turn uint64, ok bool) {
	p, limit, ok = by.meant.Resolve(it.Limit, set)
	if !ok || s.config.Overrides == nil {
		return p, limit, 0, ok
	}
	if !p.ByConsumer() || it.Place == 0 && !by.late {
		return p, limit, 0, ok
	}
	if it.Place == 0 {
		return p, limit, 2 * min(it.Turn, s.config.Overrides.Turn()), ok
	}
	known, found := by.people[it.Consumer]
	if !found {
		return p, limit, 0, false
	}
	now := s.config.Now()
	if by.late {
		now = now.Add(skew)
	}
	own, turn, overridden := ownLimits(known, p, now, by.late)
	switch {
	case !overridden:
		return p, limit, turn, true
	case int(it.Place) > len(own):
		return p, boundless, turn, true
	}
	return p, own[it.Place-1], turn, true
}
