package inflight

import "github.com/weir-proxy/weir/shared/quota"

// atOnce bounds the buckets that one tick looks after.
const atOnce = 512

// Tick serves requests that wait, gives places back that nothing uses, counts requests out that
// last too long, and shows that the worker runs.
func (b *Book) Tick(now quota.Instant) {
	if now >= b.nextOut {
		b.countOut(now)
	}
	b.tickPending(now)
	if !b.shows() || now < b.workers.looked+quota.Instant(markEvery) {
		return
	}
	b.show(now)
}

// show shows that the worker runs. It reports false if it cannot.
func (b *Book) show(now quota.Instant) bool {
	w := &b.workers
	if w.own != 0 && w.show(now) {
		return true
	}
	if !w.join(now) {
		return false
	}
	b.restoreAll(now) // Others may have taken this worker for dead, and its places.
	return true
}

// wants notes that the worker wants a place. It reports false if the worker can hold none.
func (b *Book) wants(now quota.Instant) bool {
	w := &b.workers
	w.wanted = now
	return w.own != 0 && now < w.looked+quota.Instant(deadAfter/2) || b.show(now)
}

// shows reports whether the worker must show that it runs: while it holds places, and for a while
// after.
func (b *Book) shows() bool {
	w := &b.workers
	return w.own != 0 && (len(b.buckets) > 0 || w.looked < w.wanted+quota.Instant(watchFor))
}

// restoreAll stores in the cells of all buckets what this worker has in flight.
func (b *Book) restoreAll(now quota.Instant) {
	for _, k := range b.buckets {
		if k.used > 0 || k.isPending {
			b.restore(k, now)
		}
	}
}

// restore is report for a bucket whose cell may know nothing of this worker, and may have no limit.
func (b *Book) restore(k *bucket, now quota.Instant) {
	c := b.prepare(nil, now)
	c.limit, c.generation = k.limit, k.generation
	b.store(k, 0)
}

// NextDue is when Tick has something to do.
func (b *Book) NextDue(now quota.Instant) quota.Instant {
	switch {
	case len(b.pending) > 0 || len(b.resolved) > 0:
		return now
	case b.shows():
		return min(b.nextOut, b.nextClaim, b.workers.looked+quota.Instant(markEvery))
	}
	return min(b.nextOut, b.nextClaim)
}

// NextResume is when requests that waited go on, never if there are none.
func (b *Book) NextResume(now quota.Instant) quota.Instant {
	if len(b.resolved) > 0 {
		return now
	}
	return quota.Forever
}

// tickPending looks after the pending buckets. Places go to requests that wait for them. They go
// back to the other workers if there is little room, or if no request came since the last tick.
func (b *Book) tickPending(now quota.Instant) {
	n := min(len(b.pending), atOnce)
	for _, k := range b.pending[:n] {
		k.isPending = false
		idle := k.have - k.used
		if k.quiet {
			idle = 0
		}
		if len(k.waiters) > 0 {
			b.serve(k, now)
		} else {
			b.report(k, idle, now)
		}
		k.quiet = true
		b.addPending(k)
		b.forget(k)
	}
	b.pending = b.pending[:copy(b.pending, b.pending[n:])]
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

// Wait has a request wait for a place until an instant, behind those that wait already. It reports
// false if as many wait as there are places, or if the worker is Crowded.
func (b *Book) Wait(s *Seat, until quota.Instant) bool {
	k := b.buckets[s.Key]
	if k == nil {
		k = b.bucketOf(s)
		b.claimFor(k, s)
	}
	if int64(len(k.waiters)) >= s.Most || b.Crowded() {
		b.forget(k)
		return false
	}
	if s.State, s.Until = Waiting, until; k.leased {
		k.due, b.nextClaim = 0, 0
	}
	k.waiters = append(k.waiters, s)
	b.waiting++
	b.Stats.Queued++
	b.addPending(k)
	return true
}

// Leave withdraws a request that waits.
func (b *Book) Leave(s *Seat) {
	k := b.buckets[s.Key]
	if s.State != Waiting || k == nil {
		return
	}
	for at := range k.waiters {
		if k.waiters[at] == s {
			b.dequeue(k, at)
			break
		}
	}
	s.State = None
	b.forget(k)
}

// serve gives places to the requests that wait for them, in their order, and ends those that have
// waited long enough.
func (b *Book) serve(k *bucket, now quota.Instant) {
	for len(k.waiters) > 0 {
		s := k.waiters[0]
		if k.used == k.have || now >= k.until {
			b.fetch(k, s, now)
		}
		if k.used >= k.have {
			break
		}
		b.seat(k, s, now)
		b.resolve(k, 0)
	}
	for i := 0; i < len(k.waiters); {
		if k.giveUp(k.waiters[i], now, b.Away) {
			b.resolve(k, i)
		} else {
			i++
		}
	}
	b.addPending(k)
}

func (b *Book) resolve(k *bucket, at int) {
	b.resolved = append(b.resolved, k.waiters[at].Stream)
	b.dequeue(k, at)
}

func (b *Book) dequeue(k *bucket, at int) {
	copy(k.waiters[at:], k.waiters[at+1:])
	k.waiters = k.waiters[:len(k.waiters)-1]
	b.waiting--
}

// TakeResolved returns streams that do not wait any more, the first ones and at most so many. The
// slice is good until the next call of the Book.
func (b *Book) TakeResolved(most int) []uint32 {
	streams := b.resolved[:min(most, len(b.resolved))]
	b.resolved = b.resolved[len(streams):]
	if len(b.resolved) == 0 && cap(b.resolved) < 64 {
		b.resolved = make([]uint32, 0, 256)
	}
	return streams
}

// Crowded reports whether as many requests wait as may in this worker, for all limits together.
func (b *Book) Crowded() bool { return b.waiting >= maxWaiting }

// Waiting is how many requests wait.
func (b *Book) Waiting() int { return b.waiting }

// Close gives back what the worker holds, whose streams are over.
func (b *Book) Close(now quota.Instant) {
	for _, k := range b.pending {
		k.used = 0
		b.report(k, 0, now)
	}
}
