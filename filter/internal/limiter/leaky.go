package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/delay"
	"github.com/weir-proxy/weir/shared/quota"
)

// delay ends a request that all its buckets have allowed. It goes on at once, or when the last of
// its leaky buckets lets it.
func (l *Limiter) delay(req *Request, now quota.Instant) Status {
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
	l.delays.Wait(req.Stream, last.place(), places > 1)
	return Delayed
}

// Release returns the streams of delayed requests whose turn has come by now, in their order and at
// most so many. The slice is good until the next call.
func (l *Limiter) Release(now quota.Instant, most int) []uint32 { return l.delays.Release(now, most) }

// NextRelease is when Release has the next one.
func (l *Limiter) NextRelease() quota.Instant { return l.delays.NextDue() }

// place is the place of a hit that has passed in its leaky bucket.
func (h *Hit) place() delay.Place {
	return delay.Place{
		Key: h.Key, Kind: uint8(h.decider.kind), Cost: h.Cost,
		At: h.release, Params: h.params, After: h.after,
	}
}

// takeKept looks for a place that another request of this VM has left, and with commit takes it.
// Nothing is charged for it.
func (l *Limiter) takeKept(h *Hit, now quota.Instant, commit bool) bool {
	want := h.place()
	p, ok := l.delays.Kept(want.Key, want.Kind, want.Cost, now, commit && !l.delays.Full())
	if !ok || l.delays.Full() {
		return false
	}
	l.full, l.store.Figures = full{now: now}, bucketstore.Figures{Params: p.Params}
	// It stores nothing, so it cannot fail.
	_ = l.store.Update(bucketstore.Kind(p.Kind), p.Key, now, &l.full)
	h.Known, h.Remaining, h.Reset, h.Retry = true, 0, quota.Span(max(l.full.at, p.At)-now), 0
	h.passed = commit
	if commit {
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

// leave gives up a place that has not come yet. The last place of a bucket of this node's own goes
// back to it. Another one is kept for the next request of the bucket in this VM.
func (l *Limiter) leave(p delay.Place, now quota.Instant) {
	if p.At <= now {
		return
	}
	if kind := bucketstore.Kind(p.Kind); kind != bucketstore.Leased {
		l.place, l.store.Figures = releasePlace{place: p, now: now}, bucketstore.Figures{Params: p.Params}
		if err := l.store.Update(kind, p.Key, now, &l.place); err == nil && l.place.done {
			return
		}
	}
	l.delays.Keep(p, now)
}

// releasePlace is the change that takes a place back if it is the last of its bucket.
type releasePlace struct {
	place delay.Place
	now   quota.Instant
	done  bool
}

// Apply implements bucketstore.Change.
func (v *releasePlace) Apply(e *bucketstore.Entry) bool {
	p := v.place.Params
	v.done = !e.New && e.Params == p && p.Refill(e.State, v.now) == p.Refill(v.place.After, v.now)
	if v.done {
		e.State = p.Refill(e.State, v.now)
		e.State.Debt = max(0, e.State.Debt-p.UnitsFor(v.place.Cost))
	}
	return v.done
}
