package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/delay"
	"github.com/weir-proxy/weir/shared/quota"
)

// queued says whether a hit's bucket is a queue, in which the request takes a place.
func (l *Limiter) queued(req *Request, h *Hit) bool {
	return h.Cost > 0 && req.LimitOf(&h.Hit).Algorithm == quota.LeakyBucket
}

// hold ends a request that all its buckets have allowed: it goes on at once, or when the last of its leaky buckets lets it.
func (l *Limiter) hold(req *Request, now quota.Instant) Status {
	var last *Hit
	places := 0
	for i := range req.Hits {
		if h := &req.Hits[i]; h.release != 0 {
			places++
			if last == nil || h.release > last.release {
				last = h
			}
		}
	}
	if last == nil || last.release <= now {
		return Allowed
	}
	req.Delay = quota.Span(last.release - now)
	for i := range req.Hits {
		h := &req.Hits[i]
		h.Reset = max(h.Reset-req.Delay, 0) // As it will be when the answer leaves.
	}
	l.Stats.Delayed++
	l.delays.Wait(req.Stream, l.placeOf(last), places > 1)
	return Delayed
}

// Release returns the streams of delayed requests whose turn has come by now, in their order and at most so many. The slice is
// good until the next call.
func (l *Limiter) Release(now quota.Instant, most int) []uint32 { return l.delays.Release(now, most) }

// Holding is the number of requests that leaky buckets hold back.
func (l *Limiter) Holding() int { return l.delays.Len() }

// placeOf is the place of a settled hit in its leaky bucket.
func (l *Limiter) placeOf(h *Hit) delay.Place {
	kind := bucketstore.Local
	switch h.by {
	case byShare:
		kind = bucketstore.Share
	case byCredit, byTicket:
		kind = bucketstore.Leased
	}
	return delay.Place{Key: h.Key, Kind: uint8(kind), Cost: h.Cost, At: h.release, Params: h.params, After: h.after}
}

// takeKept looks for a place that another request of this VM has left, and with commit takes it: nothing is charged for it.
func (l *Limiter) takeKept(req *Request, h *Hit, now quota.Instant, commit bool) bool {
	want := l.placeOf(h)
	p, ok := l.delays.Kept(want.Key, want.Kind, want.Cost, now, commit && !l.delays.Full())
	if !ok || l.delays.Full() {
		return false
	}
	l.full, l.store.Figures = full{now: now}, bucketstore.Figures{Params: p.Params}
	_ = l.store.Update(bucketstore.Kind(p.Kind), p.Key, now, &l.full) // It stores nothing, so nothing can be in its way.
	h.Known, h.Remaining, h.Reset, h.Retry = true, 0, quota.Span(max(l.full.at, p.At)-now), 0
	if h.settled = commit; commit {
		h.release, h.params, h.after = p.At, p.Params, p.After
	}
	return true
}

// full is the change that only looks when a bucket will be full.
type full struct{ now, at quota.Instant }

// Apply implements bucketstore.Change.
func (f *full) Apply(e *bucketstore.Entry) bool {
	if e.Kind == bucketstore.Leased {
		f.at = max(e.Credit.FullAt, e.Credit.Told)
	} else {
		f.at = f.now + quota.Instant(e.Params.ResetAfter(e.State, f.now))
	}
	return false
}

// leave gives up a place that has not come yet. The last one of a bucket of this node's own goes back to it; another one is kept
// for the next request of the bucket in this VM.
func (l *Limiter) leave(p delay.Place, now quota.Instant) {
	if p.At <= now {
		return
	}
	if kind := bucketstore.Kind(p.Kind); kind != bucketstore.Leased {
		l.vacate, l.store.Figures = vacate{place: p, now: now}, bucketstore.Figures{Params: p.Params}
		if err := l.store.Update(kind, p.Key, now, &l.vacate); err == nil && l.vacate.done {
			return
		}
	}
	l.delays.Keep(p, now)
}

// vacate is the change that takes a place back if it is the last of its bucket.
type vacate struct {
	place delay.Place
	now   quota.Instant
	done  bool
}

// Apply implements bucketstore.Change.
func (v *vacate) Apply(e *bucketstore.Entry) bool {
	p := v.place.Params
	v.done = !e.New && e.Params == p && p.Refill(e.State, v.now) == p.Refill(v.place.After, v.now)
	if v.done {
		e.State = p.Refill(e.State, v.now)
		e.State.Debt = max(0, e.State.Debt-p.UnitsFor(v.place.Cost))
	}
	return v.done
}
