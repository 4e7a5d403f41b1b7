package inflight

import "github.com/weir-proxy/weir/shared/quota"

// fetchPlace takes places of the bucket's cell for one more request, and gives back surplus places.
// It reports false if the cell could not be changed.
func (b *Book) fetchPlace(k *bucket, s *Seat, now quota.Instant) bool {
	b.prepareChange(s, now).more = true
	b.change.exact = s.Exact || s.Beyond > 0 // Beyond the limit no place is kept for requests to come.
	return b.storeChange(k, 0)
}

// reportPlaces stores the worker's requests in flight in the cell, and keeps idle places.
func (b *Book) reportPlaces(k *bucket, idle int64, now quota.Instant) bool {
	b.prepareChange(nil, now)
	return b.storeChange(k, idle)
}

// prepareChange makes the change for a seat, or for no seat.
func (b *Book) prepareChange(s *Seat, now quota.Instant) *change {
	c := &b.change
	*c = change{workers: &b.workers, worker: b.workers.own}
	c.now, c.away = now, b.Away
	if s != nil {
		c.limit, c.generation, c.leased, c.beyond = s.Most, s.Generation, s.Leased, s.Beyond
	}
	return c
}

// storeChange writes the worker's places into the cell, and reads the cell's figures.
func (b *Book) storeChange(k *bucket, idle int64) bool {
	c := &b.change
	c.used, c.idle = k.used, idle
	c.leased, c.load.IdleSince = k.leased, k.idleSince
	c.load.Waiting += int64(len(k.waiters))
	if err := b.table.updateCell(&k.key, c); err != nil {
		return false
	}
	k.have, k.limit, k.ceiling, k.room, k.generation = c.have, c.limit, c.ceiling, c.room, c.generation
	if c.leased {
		b.learnPermits(k, c)
	} else {
		k.until, k.doubt = quota.Forever, 0
	}
	return true
}

// learnPermits reads the figures of a bucket's permits from a change.
func (b *Book) learnPermits(k *bucket, c *change) {
	p := &c.permits
	if !p.Idle(c.now, c.load) {
		c.load.IdleSince = 0
	} else if c.load.IdleSince == 0 {
		c.load.IdleSince = c.now
	}
	if p.Until > k.until && p.Pause > 0 { // An answer brought fewer permits than the node needs.
		for _, s := range k.waiters {
			s.refused = true
		}
	}
	k.until, k.free, k.sent, k.idleSince, k.doubt = p.Until, p.Free, p.Sent, c.load.IdleSince, p.Doubt
	asked := k.asks
	if k.asks = p.Recorded < c.limit && !p.Empty(c.now); k.asks && !asked {
		k.asksFrom = c.now
	}
	k.due = p.Due(c.now, c.load)
	if k.due == quota.Forever { // Claims removes it from the list.
		b.nextClaim = c.now
	}
	b.nextClaim = min(b.nextClaim, k.due)
}
