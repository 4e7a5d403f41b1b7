package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/delay"
	"github.com/weir-proxy/weir/shared/quota"
)

// holdUntilTurn ends a request that all its buckets allow. The request goes on at once, or at its
// latest turn in a leaky bucket.
func (l *Limiter) holdUntilTurn(req *Request, now quota.Instant) Status {
	var last *Hit
	turns := 0
	for i := range req.Hits {
		if h := &req.Hits[i]; h.release != 0 {
			turns++
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
		h.Reset = max(h.Reset-req.Delay, 0) // Its value when the answer leaves.
	}
	l.Stats.Delayed++
	l.delays.Wait(req.Stream, last.turn(), turns > 1)
	return Delayed
}

// Release returns the delayed requests whose turn is due now, at most most streams, in order. The
// slice is good until the next call.
func (l *Limiter) Release(now quota.Instant, most int) []uint32 {
	l.freeDue(now)
	return l.delays.Release(now, most)
}

// NextRelease returns when Release has the next stream.
func (l *Limiter) NextRelease() quota.Instant {
	next := l.delays.NextDue()
	if len(l.trials.ending) > 0 {
		next = min(next, l.trials.next)
	}
	return next
}

// turn returns the hit's turn in its leaky bucket.
func (h *Hit) turn() delay.Turn {
	return delay.Turn{
		Key: h.Key, Kind: uint8(h.decider.kind), Cost: h.Cost,
		At: h.release, Params: h.params, After: h.after,
	}
}

// takeKept looks for a turn that another request of this VM has left, or takes it. The turn is
// charged already.
func (l *Limiter) takeKept(h *Hit, now quota.Instant, do mode) bool {
	if l.delays.Full() {
		return false
	}
	want := h.turn()
	p, ok := l.delays.Kept(want.Key, want.Kind, want.Cost, now, do == charge)
	if !ok {
		return false
	}
	l.full, l.store.Figures = full{now: now}, bucketstore.Figures{Params: p.Params}
	// It stores nothing, so it cannot fail.
	_ = l.store.Update(bucketstore.Kind(p.Kind), p.Key, now, &l.full)
	h.Known, h.Remaining, h.Reset, h.Retry = true, 0, quota.Span(max(l.full.at, p.At)-now), 0
	h.passed = do == charge
	if do == charge {
		h.release, h.params, h.after = p.At, p.Params, p.After
	}
	return true
}

// leaveTurn gives up a turn that has not come yet. The last turn of a bucket of this node's own
// goes back to the bucket. Any other turn is kept for the next request of the bucket in this VM.
func (l *Limiter) leaveTurn(turn delay.Turn, now quota.Instant) {
	if turn.At <= now {
		return
	}
	if kind := bucketstore.Kind(turn.Kind); kind != bucketstore.Leased {
		l.turn, l.store.Figures = releaseTurn{turn: turn, now: now}, bucketstore.Figures{Params: turn.Params}
		if err := l.store.Update(kind, turn.Key, now, &l.turn); err == nil && l.turn.done {
			return
		}
	}
	l.delays.Keep(turn, now)
}
