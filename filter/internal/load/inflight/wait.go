package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// maxWaiting bounds the requests that wait in one worker.
	maxWaiting = 1024
	// answerTakes is how long the answer to a claim takes at most, unless it is late. What a node
	// asks for later than that before a request has waited long enough is no failure: it knew then
	// that there was no permit.
	answerTakes = 25 * quota.Millisecond
)

// Wait has a request wait for a place until an instant, behind those that wait already. It reports
// false if as many wait as may, or if the worker is Crowded.
func (b *Book) Wait(s *Seat, until quota.Instant) bool {
	k := b.buckets[s.Key]
	if k == nil {
		k = b.bucketOf(s)
		b.claimFor(k, s)
	}
	if int64(len(k.waiters)) >= k.mayWait(s) || b.Crowded(s) {
		s.Elsewhere = k.lacks()
		b.forget(k)
		return false
	}
	if s.State, s.Until, s.refused = Waiting, until, false; k.leased {
		k.due, b.nextClaim = 0, 0
	}
	k.waiters = append(k.waiters, s)
	*b.count(s)++
	if s.Trial == 0 {
		b.Stats.Queued++
	}
	b.addPending(k)
	return true
}

// mayWait is how many may wait, with a seat that does: as many as there are places. Beside those
// wait, as long as the control plane is asked, as many as it may give places to.
func (k *bucket) mayWait(s *Seat) int64 {
	if k.leased && s.Patient && (k.asks || k.sent != 0) {
		return s.Most + max(s.Most-k.ceiling, 0)
	}
	return s.Most
}

// count is the number of seats that wait like s.
func (b *Book) count(s *Seat) *int {
	if s.Trial != 0 {
		return &b.trying
	}
	return &b.waiting
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
// waited long enough. It looks at the cell for each, also where the worker has a place.
// There may be fewer places by now than are held.
func (b *Book) serve(k *bucket, now quota.Instant) {
	for len(k.waiters) > 0 {
		s := k.waiters[0]
		if !b.fetch(k, s, now) || k.used >= k.have {
			break // The tick tries again.
		}
		b.seat(k, s, now)
		b.resolve(k, 0)
	}
	for i := 0; i < len(k.waiters); {
		if s := k.waiters[i]; k.giveUp(s, now, b.Away) {
			b.resolve(k, i)
		} else if int64(i) >= k.mayWait(s) {
			k.full(s, now)
			b.resolve(k, i)
		} else {
			i++
		}
	}
	b.addPending(k)
}

// relimit has those that wait go by the limit of a request of a newer policy set. It comes behind
// them, so nothing else would store its limit as long as they wait.
func (b *Book) relimit(k *bucket, s *Seat, now quota.Instant) {
	b.prepare(s, now).exact = s.Exact
	if b.store(k, k.have-k.used) {
		b.serve(k, now)
	}
}

// giveUp ends a seat that has waited in vain, and reports whether it does.
func (k *bucket) giveUp(s *Seat, now quota.Instant, away bool) bool {
	central, over := k.leased && s.Beyond == 0, now >= s.Until
	switch {
	case central && (away || over && !s.refused && k.askedBefore(s.Until-quota.Instant(answerTakes))):
		s.State, s.Room, s.Since = Unanswered, 0, 0
	case over, central && !s.Patient && k.sent == 0 && !k.asks:
		k.full(s, now)
	default:
		return false
	}
	return true
}

// askedBefore reports whether before an instant a claim left that has no answer yet, or the control
// plane might have had a permit.
func (k *bucket) askedBefore(at quota.Instant) bool {
	return k.sent != 0 && k.sent < at || k.asks && k.asksFrom < at
}

func (b *Book) resolve(k *bucket, at int) {
	if s := k.waiters[at]; s.Trial != 0 {
		b.tried = append(b.tried, s.Trial)
	} else {
		b.resolved = append(b.resolved, s.Stream)
	}
	b.dequeue(k, at)
}

func (b *Book) dequeue(k *bucket, at int) {
	*b.count(k.waiters[at])--
	copy(k.waiters[at:], k.waiters[at+1:])
	k.waiters = k.waiters[:len(k.waiters)-1]
}

// TakeResolved returns streams that do not wait any more, the first ones and at most so many. The
// slice is good until the next call of the Book.
func (b *Book) TakeResolved(most int) []uint32 { return b.resolved.Take(most) }

// TakeTried returns the numbers of trials of which a seat does not wait any more. The slice is good
// until the next call of the Book.
func (b *Book) TakeTried() []uint32 { return b.tried.Take(len(b.tried)) }

// Crowded reports whether as many requests wait as may in this worker, for all limits together; if
// the seat is that of a trial, whether as many trials do.
func (b *Book) Crowded(s *Seat) bool { return *b.count(s) >= maxWaiting }

// Waiting is how many requests wait.
func (b *Book) Waiting() int { return b.waiting }
