package controlplanetest

import (
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// claim answers a claim of permits.
func (s *Store) claim(now quota.Instant, bucket keyhash.Key, c inflight.Claim) lease.Grant {
	if s.permits == nil {
		s.permits = map[keyhash.Key]inflight.Ledger{}
	}
	before := s.permits[bucket]
	if !s.Sure {
		c.Doubt = leases.PermitsDoubtful(s.lost, now)
	}
	after, answer := before.Claim(now, c)
	s.permits[bucket] = after
	s.journal = append(s.journal, change{at: now, bucket: bucket, claimed: true, permits: before})
	return leases.Permitted(answer)
}

// Permits is who holds permits of a bucket.
func (s *Store) Permits(bucket keyhash.Key) inflight.Ledger { return s.permits[bucket] }
