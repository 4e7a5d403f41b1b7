package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// maxWaiting bounds the requests that wait in one worker.
	maxWaiting = 1024
	// answerTakes is the longest time of an answer to a claim that is not late. If a node first
	// claims later than answerTakes before the end of a request's wait, a missing answer is no
	// failure: until then the node knew that there was no permit.
	answerTakes = 25 * quota.Millisecond
)

// Wait queues a seat for a place until an instant, behind the seats that wait already. It reports
// false if the maximum of requests waits already, or if the worker is Crowded.
func (b *Book) Wait(s *Seat, until quota.Instant) bool {
	k := b.buckets[s.Key]
	if k == nil {
		k = b.bucketOf(s)
		b.claimFor(k, s)
	}
	if int64(len(k.waiters)) >= k.maxWaiters(s) || b.Crowded(s) {
		s.Elsewhere = k.lacksPlaces()
		b.forgetBucket(k)
		return false
	}
	if s.State, s.Until, s.refused = Waiting, until, false; k.leased {
		k.due, b.nextClaim = 0, 0
	}
	k.waiters = append(k.waiters, s)
	*b.waitingLike(s)++
	if s.Trial == 0 {
		b.Stats.Queued++
	}
	b.addPending(k)
	return true
}

// maxWaiters returns the number of seats that may wait, including s: the limit. While the control
// plane is asked for permits, the permits that it may still grant count in addition.
func (k *bucket) maxWaiters(s *Seat) int64 {
	if k.leased && s.Patient && (k.asks || k.sent != 0) {
		return s.Most + max(s.Most-k.ceiling, 0)
	}
	return s.Most
}

// waitingLike returns the counter for seats like s: waiting or trying.
func (b *Book) waitingLike(s *Seat) *int {
	if s.Trial != 0 {
		return &b.trying
	}
	return &b.waiting
}

// Leave withdraws a seat that waits.
func (b *Book) Leave(s *Seat) {
	k := b.buckets[s.Key]
	if s.State != Waiting || k == nil {
		return
	}
	for at := range k.waiters {
		if k.waiters[at] == s {
			b.removeWaiter(k, at)
			break
		}
	}
	s.State = None
	b.forgetBucket(k)
}

// serveWaiters gives places to the waiting seats in order, and ends seats that have waited long
// enough. It looks at the cell for each seat, even if the worker has a place, because the limit may
// be lower by now than the number of places held.
func (b *Book) serveWaiters(k *bucket, now quota.Instant) {
	for len(k.waiters) > 0 {
		s := k.waiters[0]
		if !b.fetchPlace(k, s, now) || k.used >= k.have {
			break // The tick tries again.
		}
		b.giveSeat(k, s, now)
		b.resolveSeat(k, 0)
	}
	for i := 0; i < len(k.waiters); {
		if s := k.waiters[i]; k.giveUp(s, now, b.Away) {
			b.resolveSeat(k, i)
		} else if int64(i) >= k.maxWaiters(s) {
			k.markFull(s, now)
			b.resolveSeat(k, i)
		} else {
			i++
		}
	}
	b.addPending(k)
}

// applyLimit applies the limit of a seat with a newer policy set to the seats that wait. The new
// seat is behind them, so its limit would otherwise not be stored while they wait.
func (b *Book) applyLimit(k *bucket, s *Seat, now quota.Instant) {
	b.prepareChange(s, now).exact = s.Exact
	if b.storeChange(k, k.have-k.used) {
		b.serveWaiters(k, now)
	}
}

// giveUp ends a seat that has waited in vain, and reports whether it did.
func (k *bucket) giveUp(s *Seat, now quota.Instant, away bool) bool {
	central, over := k.leased && s.Beyond == 0, now >= s.Until
	switch {
	case central && (away || over && !s.refused && k.askedBefore(s.Until-quota.Instant(answerTakes))):
		s.State, s.Room, s.Since = Unanswered, 0, 0
	case over, central && !s.Patient && k.sent == 0 && !k.asks:
		k.markFull(s, now)
	default:
		return false
	}
	return true
}

// askedBefore reports whether, before an instant, a claim left that has no answer yet, or the
// control plane might have had a permit.
func (k *bucket) askedBefore(at quota.Instant) bool {
	return k.sent != 0 && k.sent < at || k.asks && k.asksFrom < at
}

// resolveSeat ends the wait of a seat, and notes it for the caller.
func (b *Book) resolveSeat(k *bucket, at int) {
	if s := k.waiters[at]; s.Trial != 0 {
		b.tried = append(b.tried, s.Trial)
	} else {
		b.resolved = append(b.resolved, s.Stream)
	}
	b.removeWaiter(k, at)
}

// removeWaiter removes a seat from the waiters.
func (b *Book) removeWaiter(k *bucket, at int) {
	*b.waitingLike(k.waiters[at])--
	copy(k.waiters[at:], k.waiters[at+1:])
	k.waiters = k.waiters[:len(k.waiters)-1]
}

// TakeResolved returns at most most streams that wait no longer, in order. The slice is good until
// the next call of the Book.
func (b *Book) TakeResolved(most int) []uint32 { return b.resolved.Take(most) }

// TakeTried returns the numbers of trials whose seat waits no longer. The slice is good until the
// next call of the Book.
func (b *Book) TakeTried() []uint32 { return b.tried.Take(len(b.tried)) }

// Crowded reports whether maxWaiting requests wait in this worker, for all limits together. For a
// trial's seat it counts trials.
func (b *Book) Crowded(s *Seat) bool { return *b.waitingLike(s) >= maxWaiting }

// Waiting returns the number of requests that wait.
func (b *Book) Waiting() int { return b.waiting }
