// Package delay holds requests back until their turn in a leaky bucket has come. It decides
// nothing: the bucket has given each request its place.
package delay

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// Place is a turn in the queue that a leaky bucket is: Cost of the bucket at Key from the instant
// At on.
type Place struct {
	Key keyhash.Key
	// Kind tells apart buckets of one key.
	Kind uint8
	Cost int64
	At   quota.Instant
	// Params and After are the bucket's figures and its state behind this place, where it is one of
	// this node's own.
	Params quota.Params
	After  quota.State
}

// Queue is the requests of one VM that are held back. The zero value holds none.
type Queue struct {
	// Bound is the largest number of requests that may be held back at once.
	Bound int

	waiting  []waiter // by time, then arrival
	holes    []Place  // places that no request waits for any more, by time
	released []uint32
}

type waiter struct {
	Place
	stream uint32
	fixed  bool
}

// Len is the number of requests held back.
func (q *Queue) Len() int { return len(q.waiting) }

// Full reports whether no more may be held back.
func (q *Queue) Full() bool { return len(q.waiting) >= q.Bound }

// Wait holds a stream back until p.At. One that waits in several buckets at once is fixed: its
// place suits no other request, and it moves up in none.
func (q *Queue) Wait(stream uint32, p Place, fixed bool) {
	at := len(q.waiting)
	for at > 0 && q.waiting[at-1].At > p.At {
		at--
	}
	q.waiting = append(q.waiting, waiter{})
	copy(q.waiting[at+1:], q.waiting[at:])
	q.waiting[at] = waiter{p, stream, fixed}
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
// cost, moves up by one place, so that their order stays; the place that the last of them leaves is
// returned, unless there is none to give.
func (q *Queue) Leave(stream uint32) (freed Place, ok bool) {
	at := 0
	for at < len(q.waiting) && q.waiting[at].stream != stream {
		at++
	}
	if at == len(q.waiting) {
		return Place{}, false
	}
	free := at
	if gone := &q.waiting[at]; !gone.fixed {
		for next := at + 1; next < len(q.waiting); next++ {
			if w := &q.waiting[next]; !w.fixed && w.sameTurn(&gone.Place) {
				q.waiting[free].stream, free = w.stream, next
			}
		}
		ok = true
	}
	freed = q.waiting[free].Place
	q.waiting = append(q.waiting[:free], q.waiting[free+1:]...)
	return freed, ok
}

// Keep keeps a place for the next request of its bucket that comes before it has passed.
func (q *Queue) Keep(p Place, now quota.Instant) {
	q.forget(now)
	if p.At <= now || len(q.holes) >= q.Bound {
		return
	}
	at := len(q.holes)
	for at > 0 && q.holes[at-1].At > p.At {
		at--
	}
	q.holes = append(q.holes, Place{})
	copy(q.holes[at+1:], q.holes[at:])
	q.holes[at] = p
}

// Kept finds the first place that is kept for a bucket at a cost, and with take hands it out.
func (q *Queue) Kept(key keyhash.Key, kind uint8, cost int64, now quota.Instant, take bool) (Place, bool) {
	if len(q.holes) == 0 {
		return Place{}, false
	}
	q.forget(now)
	want := Place{Key: key, Kind: kind, Cost: cost}
	for i, p := range q.holes {
		if p.sameTurn(&want) {
			if take {
				q.holes = append(q.holes[:i], q.holes[i+1:]...)
			}
			return p, true
		}
	}
	return Place{}, false
}

// forget drops kept places that have passed.
func (q *Queue) forget(now quota.Instant) {
	n := 0
	for n < len(q.holes) && q.holes[n].At <= now {
		n++
	}
	q.holes = append(q.holes[:0], q.holes[n:]...)
}

// sameTurn reports whether one place would do for the other's request.
func (p *Place) sameTurn(other *Place) bool {
	return p.Kind == other.Kind && p.Cost == other.Cost && p.Key == other.Key
}
