// Package delay holds requests back until their turn in a leaky bucket has come. It decides
// nothing: the bucket has given each request its turn.
package delay

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// Turn is a turn in the queue that a leaky bucket is: Cost of the bucket at Key from the instant At
// on.
type Turn struct {
	Key keyhash.Key
	// Kind tells apart buckets of one key.
	Kind uint8
	Cost int64
	At   quota.Instant
	// Params and After are the bucket's figures and its state behind this turn, where it is one of
	// this node's own.
	Params quota.Params
	After  quota.State
}

// Queue is the requests of one VM that are held back. The zero value holds none.
type Queue struct {
	// Bound is the largest number of requests that may be held back at once.
	Bound int

	waiting  []waiter // by time, then arrival
	kept     []Turn   // those that no request waits for any more, by time
	released []uint32
}

type waiter struct {
	Turn
	stream uint32
	fixed  bool
}

// Len is the number of requests held back.
func (q *Queue) Len() int { return len(q.waiting) }

// Full reports whether no more may be held back.
func (q *Queue) Full() bool { return len(q.waiting) >= q.Bound }

// Wait holds a stream back until t.At. One that waits in several buckets at once is fixed: its turn
// suits no other request, and it moves up in none.
func (q *Queue) Wait(stream uint32, t Turn, fixed bool) {
	at := len(q.waiting)
	for at > 0 && q.waiting[at-1].At > t.At {
		at--
	}
	q.waiting = append(q.waiting, waiter{})
	copy(q.waiting[at+1:], q.waiting[at:])
	q.waiting[at] = waiter{t, stream, fixed}
}

// Release returns the streams whose turn has come by now, in their order and at most so many. The
// slice is good until the next call.
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

// NextDue is when the next stream's turn comes.
func (q *Queue) NextDue() quota.Instant {
	if len(q.waiting) == 0 {
		return quota.Forever
	}
	return q.waiting[0].At
}

// Leave takes out a stream that went away. Who waits behind it in the same bucket, at the same
// cost, moves up by one turn, so that their order stays; the turn that the last of them leaves is
// returned, unless there is none to give.
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
			if w := &q.waiting[next]; !w.fixed && w.alike(&gone.Turn) {
				q.waiting[free].stream, free = w.stream, next
			}
		}
		ok = true
	}
	freed = q.waiting[free].Turn
	q.waiting = append(q.waiting[:free], q.waiting[free+1:]...)
	return freed, ok
}

// Keep keeps a turn for the next request of its bucket that comes before it has passed.
func (q *Queue) Keep(t Turn, now quota.Instant) {
	q.forget(now)
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

// Kept finds the first turn that is kept for a bucket at a cost, and with take hands it out.
func (q *Queue) Kept(key keyhash.Key, kind uint8, cost int64, now quota.Instant, take bool) (Turn, bool) {
	if len(q.kept) == 0 {
		return Turn{}, false
	}
	q.forget(now)
	want := Turn{Key: key, Kind: kind, Cost: cost}
	for i, t := range q.kept {
		if t.alike(&want) {
			if take {
				q.kept = append(q.kept[:i], q.kept[i+1:]...)
			}
			return t, true
		}
	}
	return Turn{}, false
}

// forget drops kept turns that have passed.
func (q *Queue) forget(now quota.Instant) {
	n := 0
	for n < len(q.kept) && q.kept[n].At <= now {
		n++
	}
	q.kept = append(q.kept[:0], q.kept[n:]...)
}

// alike reports whether one turn would do for the other's request.
func (t *Turn) alike(other *Turn) bool {
	return t.Kind == other.Kind && t.Cost == other.Cost && t.Key == other.Key
}
