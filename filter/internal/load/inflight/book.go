// Package inflight counts the requests that are in flight.
//
// The workers of a process share the places of a bucket in a cell of the shared data. A worker
// takes a few at once where there is room, and gives back with the tick those that it does not use,
// so most requests need no call. Where there is little room it takes and gives back one by one. So
// never more are in flight than may be, and no free place is out of another worker's sight for
// longer than a tick.
//
// A process has as many places of a limit over all Envoys as the control plane has leased it
// permits. Those are in the same cell, and any worker claims them for all.
//
// take.go has how a request takes a place and frees it, wait.go how requests wait for one, and
// claims.go the permits. change.go is what happens to a cell, store.go has it carried out, and
// table.go has how cells lie in the shared data.
package inflight

import (
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// AnyNumber, as a seat's Beyond, is more than any limit: the request is admitted always.
const AnyNumber = 2 * policy.MaxInFlight

// State is where a request stands with a place.
type State uint8

const (
	// None: the request has no place and waits for none.
	None State = iota
	// Held: it has one, until Release.
	Held
	// Full: there was none.
	Full
	// Contended: the count could not be changed, or has no room for another key.
	Contended
	// Unanswered: there was none, and the control plane, which may have some, has not answered. The
	// seat's Since says more.
	Unanswered
	// Waiting: it waits for one.
	Waiting
)

// Seat is what one request asks for, a place of a bucket, and what it has got.
type Seat struct {
	// Stream identifies the request to the caller. The seat of a trial has the number of that as
	// Trial; no request waits for it.
	Stream, Trial uint32

	Key keyhash.Key
	// Most is the limit, by the policy set of Generation.
	Most       int64
	Generation uint64
	// Hold is for how long a request counts at most; 0 is for as long as it lasts.
	Hold quota.Span
	// Exact: Most is this request's alone, and the worker holds no place beyond those in use.
	Exact bool
	// Policy names the limit for metrics; empty for one that shows in none.
	Policy []byte
	// Leased: the limit is over all nodes. Limit and Version are where the control plane finds it.
	Leased  bool
	Limit   uint32
	Version uint64
	// Beyond, if not 0, is up to how many requests this node admits whatever the limit is, such as
	// those that on_failure lets through.
	Beyond int64
	// Patient: the request waits until its time is over, also if the control plane has no permit.
	Patient bool

	State State
	// Place is what a Held seat has.
	Place Place
	// Room is how many places were left when this worker last looked.
	Room int64
	// Asks: there was none, but the control plane may have some, and is asked if the request waits.
	Asks bool
	// Doubt is for how long the control plane gives no node more than it has, where there was none
	// because it has lost who has what; 0 where there was none because all are taken.
	Doubt quota.Span
	// Elsewhere: there was none, although fewer are held in this process than there are: the others
	// are with other nodes, which may not use them.
	Elsewhere bool
	// refused: while it waited the control plane has said that it has less than the node needs.
	refused bool
	// Until is how long a Waiting seat waits. Since is when the part of the control plane's store
	// went away that an Unanswered one needs; 0: no part did.
	Until, Since quota.Instant
}

// Place is a request in flight, as Release knows it; 0 is none.
type Place uint32

// Stats counts what a Book did, for the filter's metrics.
type Stats struct {
	// CountedOut counts requests that lasted longer than they count.
	CountedOut uint64
	// Queued counts requests that waited for a place.
	Queued uint64
}

// Book is the requests in flight of one worker. Make one with New.
type Book struct {
	Stats Stats
	// Away: the control plane does not answer.
	Away bool

	table   table
	workers workers
	buckets map[keyhash.Key]*bucket
	places  []place
	// free is the first free place, 0 if there is none.
	free Place
	// nextOut is not later than when the next place is to be counted out.
	nextOut quota.Instant
	// pending are the buckets of which this worker holds places that it does not use, or has
	// requests that wait.
	pending []*bucket
	// waiting is how many requests wait, resolved are the streams of those that do not any more;
	// trying and tried are those of trials.
	waiting, trying int
	resolved, tried Resolved
	groups          []*Group
	// unmeasured: requests were in flight since Measure was last called.
	unmeasured bool
	spare      *bucket
	// claiming are the buckets of which permits are claimed. nextClaim is not later than when the
	// next claim is due.
	claiming  []*bucket
	nextClaim quota.Instant
	claims    []Claim

	change change
}

// bucket is one bucket of which this worker has something.
type bucket struct {
	key keyhash.Key
	// have is how many places the worker holds, used how many of them have a request.
	have, used int64
	// limit, ceiling and room are those of the cell when the worker last looked.
	limit, ceiling, room int64
	generation           uint64
	// until is when the worker must look again before it admits another request.
	until quota.Instant
	// waiters wait for a place, the first one first.
	waiters []*Seat
	// exact is that of its seats.
	exact bool
	// isPending: the bucket is among the pending ones. quiet: no request has come since the last
	// tick.
	isPending, quiet bool
	group            *Group
	next             *bucket

	lease
}

// lease is what a worker knows of a bucket whose limit is over all nodes.
type lease struct {
	// leased: the limit is over all nodes. isClaiming: the bucket is among those of which permits
	// are claimed.
	leased, isClaiming bool
	index              uint32
	// version is that of the policy set of the last request.
	version uint64
	// due is when the next claim is.
	due quota.Instant
	// idleSince is since when permits lie idle that other nodes may need, 0 if none does.
	idleSince quota.Instant
	// free is how many permits no node had by the last answer.
	free int64
	// sent is when the claim left that has no answer yet, 0 if there is none. doubt is until when
	// no node gets more permits than it has.
	sent, doubt quota.Instant
	// asks: the control plane may have a permit, which the worker knows since asksFrom.
	asks     bool
	asksFrom quota.Instant
}

// Claim is a claim of permits of one bucket, to be sent to the control plane.
type Claim struct {
	Key keyhash.Key
	// Limit is the index of the limit among all limits of the policy set Version.
	Limit   uint32
	Version uint64
	inflight.Claim
}

// place is one request in flight.
type place struct {
	bucket *bucket
	// out is when it is counted out, 0 if it is not.
	out quota.Instant
	// next is the following free place.
	next Place
}

// New makes the book of a worker of the name space, with room for keys as in the table of buckets.
// Seed is a number of the worker's own.
func New(shared shareddata.Data, space shareddata.Space, keys int, seed uint64) *Book {
	b := &Book{
		table: newTable(shared, space, keys), buckets: make(map[keyhash.Key]*bucket),
		places: make([]place, 1), nextOut: quota.Forever, nextClaim: quota.Forever,
		workers: workers{shared: shared, key: space.Key(shareddata.InFlightWorkers), next: uint32(seed) | 1},
	}
	return b
}

// seat gives a request one of the places that the worker holds.
func (b *Book) seat(k *bucket, s *Seat, now quota.Instant) {
	k.used++
	k.quiet = false
	s.State, s.Room = Held, k.left()
	if b.free == 0 {
		b.places = append(b.places, place{})
		b.free = Place(len(b.places) - 1)
	}
	s.Place = b.free
	p := &b.places[s.Place]
	b.free = p.next
	*p = place{bucket: k}
	if s.Hold > 0 {
		p.out = now + quota.Instant(s.Hold)
		b.nextOut = min(b.nextOut, p.out)
	}
	if k.group != nil {
		k.group.take(k.limit, s.Room, now)
		b.unmeasured = true
	}
}

// left is how many places no request has, as far as the worker knows.
func (k *bucket) left() int64 { return max(k.room, 0) + k.have - k.used + k.free }

// addPending has the tick look after a bucket that needs it.
func (b *Book) addPending(k *bucket) {
	if !k.isPending && (k.have > k.used || len(k.waiters) > 0) {
		k.isPending = true
		b.pending = append(b.pending, k)
	}
}

// bucketOf makes the bucket of a seat.
func (b *Book) bucketOf(s *Seat) *bucket {
	k := b.spare
	if k == nil {
		k = new(bucket)
	} else {
		b.spare = k.next
	}
	*k = bucket{key: s.Key, waiters: k.waiters[:0], group: b.Group(s.Policy), exact: s.Exact}
	b.buckets[s.Key] = k
	return k
}

// forget drops a bucket of which the worker has nothing.
func (b *Book) forget(k *bucket) {
	if k.have == 0 && k.used == 0 && len(k.waiters) == 0 && !k.isPending && !k.isClaiming {
		delete(b.buckets, k.key)
		k.next, b.spare = b.spare, k
	}
}

// claimFor has permits of a seat's bucket claimed, if its limit is over all nodes.
func (b *Book) claimFor(k *bucket, s *Seat) {
	k.leased, k.index, k.version = s.Leased, s.Limit, s.Version
	if k.leased && !k.isClaiming {
		k.isClaiming = true
		b.claiming = append(b.claiming, k)
	}
}

// Group finds the group of a policy, nil beyond the bound.
func (b *Book) Group(name []byte) *Group {
	if len(name) == 0 {
		return nil
	}
	for _, g := range b.groups {
		if len(g.Name) == len(name) && text.HasPrefix(name, g.Name) {
			return g
		}
	}
	if len(b.groups) >= maxGroups {
		return nil
	}
	g := &Group{Name: string(name)}
	b.groups = append(b.groups, g)
	return g
}
