package rls

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// failing has the time of the store's first failure since its last answer, in microseconds; 0 if
// the store answers.
type failing struct{ first atomic.Int64 }

// noteFailure notes a failure at a time, and returns for how long the store has not answered.
func (f *failing) noteFailure(now time.Time) quota.Span {
	f.first.CompareAndSwap(0, now.UnixMicro())
	return quota.Span(max(now.UnixMicro()-f.first.Load(), 0))
}

// noteAnswer notes that the store has answered.
func (f *failing) noteAnswer() {
	if f.first.Load() != 0 {
		f.first.Store(0)
	}
}

// fallBack decides all hits by on_failure. No hit was granted. away is the time for which the store
// has not answered; 0 if it answers.
func (d *decision) fallBack(away quota.Span) {
	d.shares = d.shares[:0]
	for i := range d.items {
		d.fallBackItem(i, away)
	}
	d.takeShares()
}

// fallBackItem decides the hits of one bucket by on_failure, after the store has been away for a
// time. Hits that use a share still wait for takeShares.
func (d *decision) fallBackItem(item int, away quota.Span) {
	for i := range d.hits {
		h := &d.hits[i]
		if h.item != item {
			continue
		}
		h.known = false // The bucket's level is not known.
		switch h.policy.OnFailure.At(away).Do {
		case policy.StepDeny:
			h.refuse(policy.ReasonFailure, policy.ByFailureDeny, quota.Second)
		case policy.StepShare:
			h.source = policy.ByShare
			d.shares = append(d.shares, h)
		default:
			h.source = policy.ByFailureAllow
		}
	}
}

// takeShares decides the hits that wait for a share by this replica's own buckets. It charges all
// hits, or none if any hit of the call refuses.
func (d *decision) takeShares() {
	if len(d.shares) == 0 {
		return
	}
	allowed := true
	for i := range d.hits {
		allowed = allowed && !d.hits[i].refuses
	}
	s, now := &d.service.shares, toInstant(d.service.config.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range d.shares {
		allowed = s.lookAt(h, d.shareOf(h), now) && allowed
	}
	for _, h := range d.shares {
		if allowed {
			s.chargeHit(h, now)
		}
	}
}

// maxShares is the largest number of this replica's own buckets.
const maxShares = 1 << 16

// shares has the buckets that this replica uses without the store. The zero value is ready for use.
type shares struct {
	mu      sync.Mutex
	buckets map[keyhash.Key]ownBucket
}

type ownBucket struct {
	params quota.Params
	state  quota.State
}

// lookAt reports whether a bucket has enough tokens for a hit, and describes it. The lock is held.
func (s *shares) lookAt(h *hit, params quota.Params, now quota.Instant) bool {
	if s.buckets == nil {
		s.buckets = map[keyhash.Key]ownBucket{}
	}
	b, found := s.buckets[h.Key]
	switch {
	case found && b.params != params:
		b.state = b.params.Convert(b.state, now, params, 0)
		b.params = params
	case !found && !s.hasRoom(now):
		h.refuse(policy.ReasonFailure, policy.ByShare, quota.Second)
		return false
	case !found:
		b = ownBucket{params: params}
		if h.policy.OnFailure.At(0).Empty {
			b.state = params.Empty(now)
		}
	}
	b.state = params.Refill(b.state, now)
	s.buckets[h.Key] = b
	_, result := params.Take(b.state, now, h.cost)
	h.describeBucket(params.Remaining(b.state), 0)
	h.reset = params.ResetAfter(b.state, now)
	if !result.Allowed {
		why := policy.ReasonFailure
		if result.RetryAfter == quota.Never && h.cost <= h.limit.Params.Burst {
			result.RetryAfter = quota.Second // The whole limit has room for it.
		}
		h.refuse(why, policy.ByShare, result.RetryAfter)
	}
	return result.Allowed
}

// chargeHit takes the cost of a hit. If several hits have the same bucket, the last hit may find
// too few tokens. The lock is held.
func (s *shares) chargeHit(h *hit, now quota.Instant) {
	b := s.buckets[h.Key]
	after, result := b.params.Take(b.state, now, h.cost)
	if !result.Allowed {
		h.refuse(policy.ReasonFailure, policy.ByShare, result.RetryAfter)
		return
	}
	b.state = after
	s.buckets[h.Key] = b
	h.describeBucket(b.params.Remaining(after), 0)
	h.reset = b.params.ResetAfter(after, now)
}

// hasRoom reports whether there is room for a further bucket, and removes full buckets.
func (s *shares) hasRoom(now quota.Instant) bool {
	if len(s.buckets) < maxShares {
		return true
	}
	for key, b := range s.buckets {
		if b.params.ResetAfter(b.state, now) == 0 {
			delete(s.buckets, key)
		}
	}
	return len(s.buckets) < maxShares
}
