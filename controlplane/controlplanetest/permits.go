package controlplanetest

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// GivenBackIn is for how long permits are in doubt after a loss.
const GivenBackIn = leases.GivenBackIn

// claim answers a claim of permits.
func (s *Store) claim(now quota.Instant, bucket keyhash.Key, c inflight.Claim) lease.Grant {
	if s.permits == nil {
		s.permits = map[keyhash.Key]inflight.Ledger{}
	}
	if !s.Sure {
		c.Doubt = leases.PermitsDoubtful(s.lost, now, leases.GivenBackIn)
		s.giveBack(now, bucket, c.Doubt)
	}
	before := s.permits[bucket]
	after, answer := before.Claim(now, c)
	s.permits[bucket] = after
	s.journal = append(s.journal, change{at: now, bucket: bucket, claimed: true, permits: before})
	g := leases.Permitted(answer)
	s.lent.Note([]leases.Item{{Bucket: bucket, Kind: wire.KindClaim, Claim: c}}, []lease.Grant{g}, now)
	return g
}

// giveBack claims the permits again whose claims may be lost, late in the doubt about permits.
func (s *Store) giveBack(now quota.Instant, bucket keyhash.Key, doubt quota.Span) {
	if s.lost == s.given || doubt > leases.GivenBackIn/4 {
		return
	}
	s.given = s.lost
	for _, again := range s.lent.Claims(now, func(of keyhash.Key) bool { return of == bucket }) {
		again.Item.Claim.Doubt = max(doubt, 1)
		s.permits[bucket], _ = s.permits[bucket].Claim(now, again.Item.Claim)
	}
}

// Permits returns the ledger of a bucket's permits.
func (s *Store) Permits(bucket keyhash.Key) inflight.Ledger { return s.permits[bucket] }
