package inflight

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// Take has a request take a place, if there is one that no other waits for.
func (b *Book) Take(s *Seat, now quota.Instant) State {
	k := b.buckets[s.Key]
	if k != nil && k.used < k.have && k.limit == s.Most && k.generation == s.Generation && now < k.until {
		b.seat(k, s, now)
		return s.State
	}
	if !b.wants(now) {
		s.State = Contended
		return s.State
	}
	if k == nil {
		k = b.bucketOf(s)
	}
	b.claimFor(k, s)
	if len(k.waiters) > 0 && s.Generation > k.generation {
		b.relimit(k, s, now)
	}
	switch {
	case len(k.waiters) > 0 && (s.Beyond == 0 || k.waiters[0].Beyond > 0):
		k.full(s, now)
		s.Asks = true
	case !b.fetch(k, s, now):
		s.State = Contended
	case k.used < k.have:
		b.seat(k, s, now)
	default:
		k.full(s, now)
		s.Asks = k.asks
	}
	b.addPending(k)
	b.forget(k)
	return s.State
}

// full ends a seat for which there is no place.
func (k *bucket) full(s *Seat, now quota.Instant) {
	s.State, s.Room, s.Doubt = Full, 0, quota.Span(max(k.doubt-now, 0))
	s.Elsewhere = k.lacks()
}

// lacks reports whether this process holds fewer places than there are over all nodes.
func (k *bucket) lacks() bool { return k.leased && k.ceiling-k.room < k.limit }

// Release ends a request in flight. The first that waits in this worker gets its place, unless more
// are held than there are. It reports whether a Tick is needed soon.
func (b *Book) Release(at Place, now quota.Instant) (soon bool) {
	p := &b.places[at]
	k := p.bucket
	*p = place{next: b.free}
	b.free = at
	if k == nil { // It was counted out before.
		return false
	}
	b.vacate(k, now)
	return k.isPending
}

// vacate frees a place of a bucket.
func (b *Book) vacate(k *bucket, now quota.Instant) {
	k.used--
	if k.group != nil {
		k.group.leave(now)
	}
	if len(k.waiters) > 0 {
		b.serve(k, now)
		return
	}
	if k.exact || inflight.Idle(k.room, k.ceiling) == 0 {
		b.report(k, 0, now) // Others may want it; if that fails the tick does it.
	}
	b.addPending(k)
	b.forget(k)
}

// countOut ends the places of requests that have lasted too long. Their streams go on.
func (b *Book) countOut(now quota.Instant) {
	b.nextOut = quota.Forever
	for i := range b.places {
		p := &b.places[i]
		switch {
		case p.bucket == nil || p.out == 0:
		case p.out > now:
			b.nextOut = min(b.nextOut, p.out)
		default:
			k := p.bucket
			*p = place{}
			b.Stats.CountedOut++
			if k.group != nil {
				k.group.CountedOut++
			}
			b.vacate(k, now)
		}
	}
}

// Close gives back what the worker holds. Its streams are over, so it holds places of the pending
// buckets alone.
func (b *Book) Close(now quota.Instant) {
	for _, k := range b.pending {
		k.used = 0
		b.report(k, 0, now)
	}
}
