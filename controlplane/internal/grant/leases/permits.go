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

// Permitted returns the answer to a claim of permits as a grant.
func Permitted(a inflight.Answer) lease.Grant {
	return lease.Grant{Keep: a.Permits, Level: a.Free, FullAfter: a.For, NotBefore: a.Doubt}
}

// PermitsDoubtful returns how long from now nodes may still hold permits that were lost with the
// store's state. Lost permits are known again after within; lost is 0 if none were lost.
func PermitsDoubtful(lost, now quota.Instant, within quota.Span) quota.Span {
	if lost == 0 {
		return 0
	}
	return max(quota.Span(lost-now)+within, 0)
}

// resolveClaim resolves an item that claims permits. If the limit is no longer known, or has no
// permits for nodes, the node gets none; but the store still counts the node's requests in flight,
// since other nodes may still have that limit.
func (r *resolver) resolveClaim(it *wire.LeaseItem) resolved {
	by, ok := r.effective(it, r.deciding)
	one := resolved{item: it, ask: Item{Bucket: it.Bucket, Kind: wire.KindClaim, Claim: inflight.Claim{
		Node: r.node, Seq: it.Seq, Hold: it.Hold, Lent: it.Lent, Nodes: r.nodes,
	}}}
	if ok && by.policy.Mode == policy.ModeLeased && by.limit.InFlight {
		one.effective, one.tier = by, r.requested.TierOf(it.Limit)
		one.candidate = r.requested.IsCandidate(it.Limit)
		c := &one.ask.Claim
		c.Need, c.Spare, c.Limit = it.Waiting, it.Keep, r.service.permitsOf(by.policy, by.limit)
	}
	return one
}

// permitsOf returns the number of a limit's permits that this region may grant.
func (s *Service) permitsOf(p *policy.Policy, l policy.Limit) int64 {
	part, _ := s.partOf(p.Name)
	return part.Of(l).Params.Burst
}

// permitAnswer converts the store's answer to a claim to the node's answer.
func permitAnswer(it *resolved, g lease.Grant) wire.LeaseAnswer {
	a := wire.LeaseAnswer{
		State: wire.ItemGranted, Waiting: servedRequests(it, g), Keep: g.Keep, Level: g.Level, For: g.FullAfter,
		NotBefore: g.NotBefore,
	}
	if it.policy == nil {
		a.State = wire.ItemUnknown
	}
	return a
}

// servedRequests returns the number of requests waiting at the node that get a permit.
func servedRequests(it *resolved, g lease.Grant) int64 {
	c := &it.ask.Claim
	return max(min(g.Keep-c.Hold, c.Need), 0)
}

// measureClaim counts the outcome of a claim.
func (s *Service) measureClaim(it *resolved, g lease.Grant) {
	c := &it.ask.Claim
	if it.policy == nil || it.candidate || g.FullAfter == 0 {
		return
	}
	granted := servedRequests(it, g)
	s.config.Meter(Use{Policy: it.policy, Tier: it.tier, Granted: granted, Refused: c.Need - granted})
	if s.config.Regions != nil {
		s.config.Regions.Want(it.policy.Name, c.Hold+c.Need)
	}
}

// Permits are the permits of one bucket.
type Permits struct {
	// Limit is the number of permits.
	Limit int64
	// Holdings are the permits of nodes at Now.
	Holdings []inflight.Holding
	Now      quota.Instant
}

// Holders returns the holders of a bucket's permits.
func (s *Service) Holders(ctx context.Context, p *policy.Policy, l policy.Limit, bucket keyhash.Key) (Permits, error) {
	if _, known := s.partOf(p.Name); !known {
		return Permits{}, ErrPart
	}
	held, now, err := s.config.Buckets.Holders(ctx, bucket)
	return Permits{s.permitsOf(p, l), held.Holdings, now}, err
}
