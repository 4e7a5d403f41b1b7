package leases

import (
	"context"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Permitted is an answer to a claim of permits as a grant.
func Permitted(a inflight.Answer) lease.Grant {
	return lease.Grant{Keep: a.Permits, Level: a.Free, FullAfter: a.For, NotBefore: a.Doubt}
}

// PermitsDoubtful is for how long from now nodes may hold permits that were lost with the store's
// state, and that are known again within some time; lost is 0 if none was.
func PermitsDoubtful(lost, now quota.Instant, within quota.Span) quota.Span {
	if lost == 0 {
		return 0
	}
	return max(quota.Span(lost-now)+within, 0)
}

// claim returns an item that claims permits with what it asks of the store. A limit that is not
// known any more, or of which no permits are lent, has none; but the store counts what the node
// has in flight, since other nodes may have that limit still.
func (r *resolver) claim(it *wire.LeaseItem) resolved {
	by, ok := r.effective(it, r.deciding)
	one := resolved{item: it, ask: Item{Bucket: it.Bucket, Kind: wire.KindClaim, Claim: inflight.Claim{
		Node: r.node, Seq: it.Seq, Hold: it.Hold, Lent: it.Lent, Nodes: r.nodes,
	}}}
	if ok && by.policy.Mode == policy.ModeLeased && by.limit.InFlight {
		one.effective, one.tier = by, r.requested.TierOf(it.Limit)
		one.candidate = r.requested.IsCandidate(it.Limit)
		c := &one.ask.Claim
		c.Need, c.Spare, c.Limit = it.Waiting, it.Keep, r.service.permits(by.policy, by.limit)
	}
	return one
}

// permits is how many permits of a limit this region may lend.
func (s *Service) permits(p *policy.Policy, l policy.Limit) int64 {
	part, _ := s.part(p.Name)
	return part.Of(l).Params.Burst
}

// permitted turns the store's answer to a claim into the node's answer.
func permitted(it *resolved, g lease.Grant) wire.LeaseAnswer {
	a := wire.LeaseAnswer{
		State: wire.ItemGranted, Waiting: served(it, g), Keep: g.Keep, Level: g.Level, For: g.FullAfter,
		NotBefore: g.NotBefore,
	}
	if it.policy == nil {
		a.State = wire.ItemUnknown
	}
	return a
}

// served is how many of the requests that wait at the node get a place.
func served(it *resolved, g lease.Grant) int64 {
	c := &it.ask.Claim
	return max(min(g.Keep-c.Hold, c.Need), 0)
}

// measureClaim notes the outcome of a claim.
func (s *Service) measureClaim(it *resolved, g lease.Grant) {
	c := &it.ask.Claim
	if it.policy == nil || it.candidate || g.FullAfter == 0 {
		return
	}
	granted := served(it, g)
	s.config.Meter(Use{Policy: it.policy, Tier: it.tier, Granted: granted, Refused: c.Need - granted})
	if s.config.Regions != nil {
		s.config.Regions.Want(it.policy.Name, c.Hold+c.Need)
	}
}

// Permits are the permits of one bucket.
type Permits struct {
	// Limit is how many there are.
	Limit int64
	// Holdings are those that nodes have at Now.
	Holdings []inflight.Holding
	Now      quota.Instant
}

// Holders returns who holds permits of a bucket.
func (s *Service) Holders(ctx context.Context, p *policy.Policy, l policy.Limit, bucket keyhash.Key) (Permits, error) {
	if _, known := s.part(p.Name); !known {
		return Permits{}, ErrPart
	}
	held, now, err := s.config.Buckets.Holders(ctx, bucket)
	return Permits{s.permits(p, l), held.Holdings, now}, err
}
