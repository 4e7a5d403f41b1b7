package inflight

import "github.com/weir-proxy/weir/shared/quota"

// atOnce bounds the buckets that one tick handles.
const atOnce = 512

// Tick serves waiting requests, gives unused places back, counts out requests that last too long,
// and shows that the worker runs.
func (b *Book) Tick(now quota.Instant) {
	if now >= b.nextOut {
		b.countOut(now)
	}
	b.tickPending(now)
	if !b.mustShow() || now < b.workers.looked+quota.Instant(markEvery) {
		return
	}
	b.showAlive(now)
}

// NextDue returns when Tick has something to do.
func (b *Book) NextDue(now quota.Instant) quota.Instant {
	switch {
	case len(b.pending) > 0 || len(b.resolved) > 0 || len(b.tried) > 0:
		return now
	case b.mustShow():
		return min(b.nextOut, b.nextClaim, b.workers.looked+quota.Instant(markEvery))
	}
	return min(b.nextOut, b.nextClaim)
}

// NextResume returns when requests that waited go on; never if there are none.
func (b *Book) NextResume(now quota.Instant) quota.Instant {
	if len(b.resolved) > 0 || len(b.tried) > 0 {
		return now
	}
	return quota.Forever
}

// tickPending handles the pending buckets. Waiting requests get their places. Unused places go back
// to the other workers if there is little room, or if no request came since the last tick.
func (b *Book) tickPending(now quota.Instant) {
	n := min(len(b.pending), atOnce)
	for _, k := range b.pending[:n] {
		k.isPending = false
		idle := k.have - k.used
		if k.quiet {
			idle = 0
		}
		if len(k.waiters) > 0 {
			b.serveWaiters(k, now)
		} else {
			b.reportPlaces(k, idle, now)
		}
		k.quiet = true
		b.addPending(k)
		b.forgetBucket(k)
	}
	b.pending = b.pending[:copy(b.pending, b.pending[n:])]
}
