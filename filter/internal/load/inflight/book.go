// Package inflight counts the requests that are in flight.
//
// The workers of a process share the places of a bucket in a cell of the shared data. Where there
// is room, a worker takes a few places at once, and gives unused places back with the tick, so most
// requests need no call. Where there is little room, it takes and gives back one place at a time.
// So the number in flight is never above the limit, and a free place is hidden from the other
// workers for at most a tick.
//
// Under a limit over all Envoys, a process has a place for each permit that the control plane has
// leased to it. The permits are in the same cell, and any worker claims them for the whole process.
//
// take.go has how a request takes and frees a place, wait.go how requests wait for a place, and
// claims.go the permits. change.go changes a cell, store.go applies a change, and table.go has the
// layout of cells in the shared data.
package inflight

import (
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// AnyNumber, as a seat's Beyond, is more than any limit: the request is always admitted.
const AnyNumber = 2 * policy.MaxInFlight

// State is the state of a request's place.
type State uint8

const (
	// None: the request has no place and waits for none.
	None State = iota
	// Held: the request has a place, until Release.
	Held
	// Full: there was no place.
	Full
	// Contended: the count could not be changed, or has no room for another key.
	Contended
	// Unanswered: there was no place, and the control plane, which may have permits, has not
	// answered. See the seat's Since.
	Unanswered
	// Waiting: the request waits for a place.
	Waiting
)

// Seat is a request for a place of a bucket, and its result.
type Seat struct {
	// Stream identifies the request to the caller. The seat of a trial has the trial's number in
	// Trial; no request waits for it.
	Stream, Trial uint32

	Key keyhash.Key
	// Most is the limit under the policy set of Generation.
	Most       int64
	Generation uint64
	// Hold is the longest time for which a request counts; 0: until the request ends.
	Hold quota.Span
	// Exact: the worker holds no places beyond the places in use, because Most is this request's
	// own limit.
	Exact bool
	// Policy names the limit for metrics; empty: the limit is in no metric.
	Policy []byte
	// Leased: the limit is over all nodes. Limit and Version identify it for the control plane.
	Leased  bool
	Limit   uint32
	Version uint64
	// Beyond, if not 0, is the number of requests up to which this node admits whatever the limit
	// is, for on_failure for example.
	Beyond int64
	// Patient: the request waits until Until, even if the control plane has no permit.
	Patient bool

	State State
	// Place is the place of a Held seat.
	Place Place
	// Room is the number of places left when this worker last looked.
	Room int64
	// Asks: there was no place, but the control plane may have permits, and is asked if the request
	// waits.
	Asks bool
	// Doubt is the time for which the control plane grants no more permits, because it has lost its
	// records; 0 if all places are taken.
	Doubt quota.Span
	// Elsewhere: there was no place, although this process holds fewer places than the limit: other
	// nodes hold the rest, used or not.
	Elsewhere bool
	// refused: while the seat waited, the control plane answered with fewer permits than the node
	// needs.
	refused bool
	// Until is when a Waiting seat stops waiting. Since is when the needed part of the control
	// plane's store went away, for an Unanswered seat; 0: no part did.
	Until, Since quota.Instant
}

// Place identifies a request in flight for Release; 0 is no place.
type Place uint32

// Stats counts the work of a Book, for the filter's metrics.
type Stats struct {
	// CountedOut counts requests that lasted longer than Hold.
	CountedOut uint64
	// Queued counts requests that waited for a place.
	Queued uint64
}

// Book has the requests in flight of one worker. Make a Book with New.
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
	// nextOut is at or before the instant at which the next place is counted out.
	nextOut quota.Instant
	// pending are the buckets with unused places of this worker, or with waiting requests.
	pending []*bucket
	// waiting is the number of waiting requests, and resolved are the streams of requests that wait
	// no longer. trying and tried are the same for trials.
	waiting, trying int
	resolved, tried Resolved
	groups          []*Group
	// unmeasured: requests were in flight since the last call of Measure.
	unmeasured bool
	spare      *bucket
	// claiming are the buckets whose permits are claimed. nextClaim is at or before the instant at
	// which the next claim is due.
	claiming  []*bucket
	nextClaim quota.Instant
	claims    []Claim

	change change
}

// bucket is a bucket in which this worker has places, waiters or a claim.
type bucket struct {
	key keyhash.Key
	// have is the number of places that the worker holds, and used the number of requests in them.
	have, used int64
	// limit, ceiling and room are the figures of the cell when the worker last looked.
	limit, ceiling, room int64
	generation           uint64
	// until is when the worker must look at the cell again before it admits another request.
	until quota.Instant
	// waiters are the seats that wait for a place, in order.
	waiters []*Seat
	// exact has the meaning of Seat.Exact.
	exact bool
	// isPending: the bucket is in Book.pending. quiet: no request has come since the last tick.
	isPending, quiet bool
	group            *Group
	next             *bucket

	lease
}

// lease is a worker's knowledge of a bucket whose limit is over all nodes.
type lease struct {
	// leased: the limit is over all nodes. isClaiming: the bucket is in Book.claiming.
	leased, isClaiming bool
	index              uint32
	// version is the policy set version of the last request.
	version uint64
	// due is when the next claim is due.
	due quota.Instant
	// idleSince is the instant since which permits are idle that other nodes may need, 0 if there
	// are none.
	idleSince quota.Instant
	// free is the number of permits that no node had at the last answer.
	free int64
	// sent is when the claim without an answer left, 0 if there is none. doubt is when the control
	// plane grants more permits again.
	sent, doubt quota.Instant
	// asks: the control plane may have a permit; the worker knows it since asksFrom.
	asks     bool
	asksFrom quota.Instant
}

// Claim is a claim of permits for one bucket, to be sent to the control plane.
type Claim struct {
	Key keyhash.Key
	// Limit is the index of the limit among all limits of the policy set Version.
	Limit   uint32
	Version uint64
	inflight.Claim
}

// place is a request in flight.
type place struct {
	bucket *bucket
	// out is when the request is counted out, 0 for never.
	out quota.Instant
	// next is the next free place.
	next Place
}

// New makes the book of a worker in a name space. Keys is the size of the table of buckets. Seed is
// a number of the worker's own.
func New(shared shareddata.Data, space shareddata.Space, keys int, seed uint64) *Book {
	b := &Book{
		table: newTable(shared, space, keys), buckets: make(map[keyhash.Key]*bucket),
		places: make([]place, 1), nextOut: quota.Forever, nextClaim: quota.Forever,
		workers: workers{shared: shared, key: space.Key(shareddata.InFlightWorkers), next: uint32(seed) | 1},
	}
	return b
}

// giveSeat gives an unused place of the worker to a request.
func (b *Book) giveSeat(k *bucket, s *Seat, now quota.Instant) {
	k.used++
	k.quiet = false
	s.State, s.Room = Held, k.placesLeft()
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
		k.group.countTaken(k.limit, s.Room, now)
		b.unmeasured = true
	}
}

// placesLeft returns the number of free places, as far as the worker knows.
func (k *bucket) placesLeft() int64 { return max(k.room, 0) + k.have - k.used + k.free }

// addPending adds a bucket that the tick must look after to Book.pending.
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

// forgetBucket deletes a bucket that the worker no longer needs.
func (b *Book) forgetBucket(k *bucket) {
	if k.have == 0 && k.used == 0 && len(k.waiters) == 0 && !k.isPending && !k.isClaiming {
		delete(b.buckets, k.key)
		k.next, b.spare = b.spare, k
	}
}

// claimFor adds a seat's bucket to Book.claiming if its limit is over all nodes.
func (b *Book) claimFor(k *bucket, s *Seat) {
	k.leased, k.index, k.version = s.Leased, s.Limit, s.Version
	if k.leased && !k.isClaiming {
		k.isClaiming = true
		b.claiming = append(b.claiming, k)
	}
}

// Group returns the group of a policy. It makes a missing group; nil beyond maxGroups.
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
