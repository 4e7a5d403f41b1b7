package inflight

import "github.com/weir-proxy/weir/shared/quota"

// fetch takes places of the bucket's cell for one more request, and gives back what is too much. It
// reports false if the cell could not be changed.
func (b *Book) fetch(k *bucket, s *Seat, now quota.Instant) bool {
	b.prepare(s, now).more = true
	b.change.exact = s.Exact || s.Beyond > 0 // Beyond the limit none is kept for requests to come.
	return b.store(k, 0)
}

// report stores in the cell what this worker has in flight, and that it keeps so many idle places.
func (b *Book) report(k *bucket, idle int64, now quota.Instant) bool {
	b.prepare(nil, now)
	return b.store(k, idle)
}

// prepare makes a change for a seat, or for none.
func (b *Book) prepare(s *Seat, now quota.Instant) *change {
	c := &b.change
	*c = change{workers: &b.workers, worker: b.workers.own}
	c.now, c.away = now, b.Away
	if s != nil {
		c.limit, c.generation, c.leased, c.beyond = s.Most, s.Generation, s.Leased, s.Beyond
	}
	return c
}

// store writes what this worker holds into the cell, and takes in what the cell says.
func (b *Book) store(k *bucket, idle int64) bool {
	c := &b.change
	c.used, c.idle = k.used, idle
	c.leased, c.load.IdleSince = k.leased, k.idleSince
	c.load.Waiting += int64(len(k.waiters))
	if err := b.table.update(&k.key, c); err != nil {
		return false
	}
	k.have, k.limit, k.ceiling, k.room, k.generation = c.have, c.limit, c.ceiling, c.room, c.generation
	if c.leased {
		b.learnOf(k, c)
	} else {
		k.until, k.doubt = quota.Forever, 0
	}
	return true
}

// learnOf notes what a change has found out about a bucket's permits.
func (b *Book) learnOf(k *bucket, c *change) {
	p := &c.permits
	if !p.Idle(c.now, c.load) {
		c.load.IdleSince = 0
	} else if c.load.IdleSince == 0 {
		c.load.IdleSince = c.now
	}
	if p.Until > k.until && p.Pause > 0 { // An answer has come, and it was less than the node needs.
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
	if k.due == quota.Forever { // Claims takes it off the list.
		b.nextClaim = c.now
	}
	b.nextClaim = min(b.nextClaim, k.due)
}
