// Package delay holds requests back until their turn in a leaky bucket has come. It decides
// nothing: the bucket has given each request its turn.
package delay

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// Turn is a turn in the queue of a leaky bucket: Cost of the bucket at Key from the instant At on.
type Turn struct {
	Key keyhash.Key
	// Kind distinguishes buckets of one key.
	Kind uint8
	Cost int64
	At   quota.Instant
	// Params and After are the bucket's figures and its state after this turn, if the bucket is
	// this node's own.
	Params quota.Params
	After  quota.State
}

// Queue has the requests of one VM that are held back. The zero value is empty.
type Queue struct {
	// Bound is the largest number of requests that may be held back at once.
	Bound int

	waiting  []waiter // by time, then arrival
	kept     []Turn   // turns that no request waits for any more, by time
	released []uint32
}

type waiter struct {
	Turn
	stream uint32
	fixed  bool
}

// Len returns the number of requests held back.
func (q *Queue) Len() int { return len(q.waiting) }

// Full reports whether no more requests may be held back.
func (q *Queue) Full() bool { return len(q.waiting) >= q.Bound }

// Wait holds a stream back until t.At. A stream that waits in several buckets at once is fixed: its
// turn suits no other request, and it moves up in no bucket.
func (q *Queue) Wait(stream uint32, t Turn, fixed bool) {
	at := len(q.waiting)
	for at > 0 && q.waiting[at-1].At > t.At {
		at--
	}
	q.waiting = append(q.waiting, waiter{})
	copy(q.waiting[at+1:], q.waiting[at:])
	q.waiting[at] = waiter{t, stream, fixed}
}

// Release returns the streams whose turn is due now, at most most streams, in order. The slice is
// good until the next call.
func (q *Queue) Release(now quota.Instant, most int) []uint32 {
	q.released = q.released[:0]
	n := 0
	for n < min(most, len(q.waiting)) && q.waiting[n].At <= now {
		q.released = append(q.released, q.waiting[n].stream)
		n++
	}
	q.waiting = append(q.waiting[:0], q.waiting[n:]...)
	return q.released
}

// NextDue returns when the next stream's turn comes.
func (q *Queue) NextDue() quota.Instant {
	if len(q.waiting) == 0 {
		return quota.Forever
	}
	return q.waiting[0].At
}

// Leave removes a stream that went away. Streams behind it in the same bucket, at the same cost,
// move up by one turn, so that their order stays. Leave returns the turn that the last of these
// streams leaves, unless there is no turn to give.
func (q *Queue) Leave(stream uint32) (freed Turn, ok bool) {
	at := 0
	for at < len(q.waiting) && q.waiting[at].stream != stream {
		at++
	}
	if at == len(q.waiting) {
		return Turn{}, false
	}
	free := at
	if gone := &q.waiting[at]; !gone.fixed {
		for next := at + 1; next < len(q.waiting); next++ {
			if w := &q.waiting[next]; !w.fixed && w.isAlike(&gone.Turn) {
				q.waiting[free].stream, free = w.stream, next
			}
		}
		ok = true
	}
	freed = q.waiting[free].Turn
	q.waiting = append(q.waiting[:free], q.waiting[free+1:]...)
	return freed, ok
}

// Keep keeps a turn for the next request of its bucket that comes before the turn has passed.
func (q *Queue) Keep(t Turn, now quota.Instant) {
	q.forgetPassed(now)
	if t.At <= now || len(q.kept) >= q.Bound {
		return
	}
	at := len(q.kept)
	for at > 0 && q.kept[at-1].At > t.At {
		at--
	}
	q.kept = append(q.kept, Turn{})
	copy(q.kept[at+1:], q.kept[at:])
	q.kept[at] = t
}

// Kept returns the first kept turn for a bucket at a cost, and removes it with take.
func (q *Queue) Kept(key keyhash.Key, kind uint8, cost int64, now quota.Instant, take bool) (Turn, bool) {
	if len(q.kept) == 0 {
		return Turn{}, false
	}
	q.forgetPassed(now)
	want := Turn{Key: key, Kind: kind, Cost: cost}
	for i, t := range q.kept {
		if t.isAlike(&want) {
			if take {
				q.kept = append(q.kept[:i], q.kept[i+1:]...)
			}
			return t, true
		}
	}
	return Turn{}, false
}

// forgetPassed drops kept turns that have passed.
func (q *Queue) forgetPassed(now quota.Instant) {
	n := 0
	for n < len(q.kept) && q.kept[n].At <= now {
		n++
	}
	q.kept = append(q.kept[:0], q.kept[n:]...)
}

// isAlike reports whether one turn can serve the other's request.
func (t *Turn) isAlike(other *Turn) bool {
	return t.Kind == other.Kind && t.Cost == other.Cost && t.Key == other.Key
}
