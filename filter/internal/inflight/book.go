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
package inflight

import (
	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxWaiting bounds the requests that wait in one worker.
const maxWaiting = 1024

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
	// Stream identifies the request to the caller.
	Stream uint32
	Key    keyhash.Key
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
	// waiting is how many requests wait, resolved are the streams of those that do not any more.
	waiting  int
	resolved []uint32
	groups   []*Group
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

// Take has a request take a place, if there is one that no other waits for.
func (b *Book) Take(s *Seat, now quota.Instant) State {
	k := b.buckets[s.Key]
	if k != nil && k.used < k.have && k.limit == s.Most && k.generation == s.Generation && now < k.until {
		b.seat(k, s, now)
		return s.State
	}
	if !b.wants(now) {
		s.State = Contended
		return s.State
	}
	if k == nil {
		k = b.bucketOf(s)
	}
	b.claimFor(k, s)
	switch {
	case len(k.waiters) > 0 && (s.Beyond == 0 || k.waiters[0].Beyond > 0):
		s.State, s.Room, s.Asks = Full, 0, true
	case !b.fetch(k, s, now):
		s.State = Contended
	case k.used < k.have:
		b.seat(k, s, now)
	default:
		s.State, s.Room, s.Asks = Full, 0, k.asks
	}
	b.addPending(k)
	b.forget(k)
	return s.State
}

// Look reports whether Take would find a place.
func (b *Book) Look(s *Seat, now quota.Instant) State {
	k := b.buckets[s.Key]
	if k != nil && k.used < k.have && now < k.until {
		return Held
	}
	c := b.prepare(s, now)
	c.looks = true
	err := b.table.update(&s.Key, c)
	switch {
	case err != nil:
		return Contended
	case c.room > 0 && (k == nil || len(k.waiters) == 0):
		return Held
	}
	return Full
}

// fetch takes places of the bucket's cell for one more request, and gives back what is too much. It
// reports false if the cell could not be changed.
func (b *Book) fetch(k *bucket, s *Seat, now quota.Instant) bool {
	b.prepare(s, now).more = true
	b.change.exact = s.Exact
	return b.store(k, 0)
}

// report stores in the cell what this worker has in flight, and that it keeps so many idle places.
func (b *Book) report(k *bucket, idle int64, now quota.Instant) bool {
	b.prepare(nil, now)
	return b.store(k, idle)
}

// prepare makes a change for a seat, or for none.
func (b *Book) prepare(s *Seat, now quota.Instant) *change {
	c := &b.change
	*c = change{workers: &b.workers, worker: b.workers.own}
	c.now, c.away = now, b.Away
	if s != nil {
		c.limit, c.generation, c.leased, c.beyond = s.Most, s.Generation, s.Leased, s.Beyond
	}
	return c
}

// store writes what this worker holds into the cell, and takes in what the cell says.
func (b *Book) store(k *bucket, idle int64) bool {
	c := &b.change
	c.used, c.idle = k.used, idle
	c.leased, c.load.IdleSince = k.leased, k.idleSince
	c.load.Waiting += int64(len(k.waiters))
	if err := b.table.update(&k.key, c); err != nil {
		return false
	}
	k.have, k.limit, k.ceiling, k.room, k.generation = c.have, c.limit, c.ceiling, c.room, c.generation
	if k.until = quota.Forever; c.leased {
		b.learnOf(k, c)
	}
	return true
}

// change is what a worker stores in a cell, and what it learns from it.
type change struct {
	workers *workers
	worker  uint32
	used    int64
	// more: a place for one more request is wanted. idle are places to keep for requests to come.
	// looks: nothing is changed. exact: no place is wanted for requests to come.
	more, looks, exact bool
	idle               int64
	// limit and generation are those of the request; a limit of 0 leaves those of the cell, which
	// they are behind the change.
	limit      int64
	generation uint64
	// have is what the worker holds behind the change, room how many places are free up to the
	// ceiling.
	have, room, ceiling int64

	permitChange
}

// apply changes a cell, and reports whether it is to be stored. It may run more than once, each
// time on the newest state.
func (c *change) apply(cell *inflight.Cell) (write bool) {
	for i := len(cell.Holders) - 1; i >= 0; i-- {
		if worker := cell.Holders[i].Worker; !c.workers.lives(worker) {
			cell.Set(worker, 0)
			write = true
		}
	}
	if c.limit > 0 && cell.Fit(c.limit, c.generation) && c.leased && !c.looks && !c.away {
		cell.Permits.Lapse(c.now)
		write = true
	}
	if c.answer.For > 0 {
		cell.Permits.Learn(c.now, c.seq, c.answer)
		write = true
	}
	cell.Admit(c.now, c.leased, c.beyond)
	if c.room = cell.Room(); c.looks {
		return false
	}
	before := cell.Of(c.worker)
	c.have = cell.Take(c.worker, c.used, c.idle, c.more)
	if c.exact {
		c.have = min(c.have, c.used+1)
		cell.Set(c.worker, c.have)
	}
	switch {
	case c.leased:
		write = c.updatePermits(cell) || write
	case !cell.Permits.None(): // The limit was over all nodes before.
		cell.Permits, write = inflight.Permits{}, true
	}
	c.room, c.ceiling, c.limit, c.generation = cell.Room(), cell.Ceiling, cell.Limit, cell.Generation
	return write || c.have != before
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

// Release ends a request in flight. The first that waits in this worker gets its place. It reports
// whether a Tick is needed soon.
func (b *Book) Release(at Place, now quota.Instant) (soon bool) {
	p := &b.places[at]
	k := p.bucket
	*p = place{next: b.free}
	b.free = at
	if k == nil { // It was counted out before.
		return false
	}
	b.vacate(k, now)
	return k.isPending
}

// vacate frees a place of a bucket.
func (b *Book) vacate(k *bucket, now quota.Instant) {
	k.used--
	if k.group != nil {
		k.group.leave(now)
	}
	if len(k.waiters) > 0 && k.have > k.used {
		b.serve(k, now)
		return
	}
	if k.exact || inflight.Idle(k.room, k.ceiling) == 0 {
		b.report(k, 0, now) // Others may want it; if that fails the tick does it.
	}
	b.addPending(k)
	b.forget(k)
}

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
