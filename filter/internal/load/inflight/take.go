package inflight

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// Take takes a place for a request, if there is a place that no other request waits for.
func (b *Book) Take(s *Seat, now quota.Instant) State {
	k := b.buckets[s.Key]
	if k != nil && k.used < k.have && k.limit == s.Most && k.generation == s.Generation && now < k.until {
		b.giveSeat(k, s, now)
		return s.State
	}
	// Otherwise the worker looks at the cell, for which it must be known to the other workers.
	if !b.ensureShown(now) {
		s.State = Contended
		return s.State
	}
	if k == nil {
		k = b.bucketOf(s)
	}
	b.claimFor(k, s)
	// A newer policy set's limit holds for the waiting requests too.
	if len(k.waiters) > 0 && s.Generation > k.generation {
		b.applyLimit(k, s, now)
	}
	switch {
	case len(k.waiters) > 0 && (s.Beyond == 0 || k.waiters[0].Beyond > 0):
		k.markFull(s, now)
		s.Asks = true
	case !b.fetchPlace(k, s, now):
		s.State = Contended
	case k.used < k.have:
		b.giveSeat(k, s, now)
	default:
		k.markFull(s, now)
		s.Asks = k.asks
	}
	b.addPending(k)
	b.forgetBucket(k)
	return s.State
}

// markFull ends a seat for which there is no place.
func (k *bucket) markFull(s *Seat, now quota.Instant) {
	s.State, s.Room, s.Doubt = Full, 0, quota.Span(max(k.doubt-now, 0))
	s.Elsewhere = k.lacksPlaces()
}

// lacksPlaces reports whether this process holds fewer places than the limit over all nodes.
func (k *bucket) lacksPlaces() bool { return k.leased && k.ceiling-k.room < k.limit }

// Release ends a request in flight. The first seat that waits in this worker gets its place, unless
// more places are held than the limit allows. It reports whether a Tick is needed soon.
func (b *Book) Release(at Place, now quota.Instant) (soon bool) {
	p := &b.places[at]
	k := p.bucket
	*p = place{next: b.free}
	b.free = at
	if k == nil { // The request was counted out before.
		return false
	}
	b.freePlace(k, now)
	return k.isPending
}

// freePlace frees a place of a bucket.
func (b *Book) freePlace(k *bucket, now quota.Instant) {
	k.used--
	if k.group != nil {
		k.group.countLeft(now)
	}
	if len(k.waiters) > 0 {
		b.serveWaiters(k, now)
		return
	}
	if k.exact || inflight.Idle(k.room, k.ceiling) == 0 {
		b.reportPlaces(k, 0, now) // Other workers may want it. If the report fails, the tick repeats it.
	}
	b.addPending(k)
	b.forgetBucket(k)
}

// countOut frees the places of requests that have lasted longer than Hold. Their streams go on.
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
			b.freePlace(k, now)
		}
	}
}

// Close gives back the worker's places. Its streams are over, so it holds places of pending buckets
// only.
func (b *Book) Close(now quota.Instant) {
	for _, k := range b.pending {
		k.used = 0
		b.reportPlaces(k, 0, now)
	}
}
