// Package overload guards upstreams by adaptive limits.
//
// The workers of a process share their knowledge of an upstream in one value of the shared data.
// Each worker adds its observations to it, a few times in a window. The worker that finds the
// window at its end updates the limit. So all workers use one limit, no worker leads, and the limit
// survives a new configuration. The requests at the upstream are counted exactly, like requests in
// flight.
package overload

import (
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// maxGuards bounds the upstreams that a worker guards at once; requests to further upstreams
	// pass.
	maxGuards = 256
	// mergeEvery is the interval at which a worker adds its observations to the shared value.
	mergeEvery = 20 * quota.Millisecond
	// maxAttempts bounds the compare-and-swap loop. Observations that could not be added are added
	// with the next tick.
	maxAttempts = 20
	// lateTicks is the number of late ticks in a row after which a worker counts as late: a single
	// late tick can be chance.
	lateTicks = 3
)

// Guards are the guards of one worker. Make Guards with New.
type Guards struct {
	shared  shareddata.Data
	key     [5 + len(keyhash.Key{})]byte
	flights *inflight.Book
	list    []*guard
	seat    inflight.Seat
	value   []byte
	// leastLate is the smallest lateness of the last ticks, since lateBegan.
	leastLate quota.Span
	ticks     int
	lateBegan quota.Instant
}

// guard guards one upstream, as a policy counts it.
type guard struct {
	key     keyhash.Key
	config  adaptive.Config
	by      policy.Signals
	classes int
	group   *inflight.Group
	// known is the shared knowledge at the instant looked.
	known  adaptive.Upstream
	looked quota.Instant
	// window, load and reports are this worker's observations that are not added yet; news: there
	// are some.
	window  adaptive.Window
	load    adaptive.Load
	reports adaptive.Reports
	news    bool
	// late decides which requests are shed because this worker is late. It counts the requests
	// since lateBegan in came.
	late adaptive.Shed
	came adaptive.Load
	// open is the number of requests with an Entry, and sent the number of them at the upstream.
	// Their time is counted until counted. used is when the last request came.
	open, sent    int64
	counted, used quota.Instant
}

// Ask is a request that wants to pass a guard.
type Ask struct {
	Stream uint32
	// Key is the upstream as the policy counts it, and Policy the policy's name.
	Key    keyhash.Key
	Policy []byte
	Limit  *policy.Adaptive
	// Rank is the request's rank among Classes classes.
	Rank    adaptive.Rank
	Classes int
}

// Entry is a request that has passed a guard, until Leave.
type Entry struct {
	guard *guard
	place inflight.Place
	class uint8
	sent  bool
	// Room is the number of further requests of its class that could pass.
	Room int64
}

// New makes the guards of a worker of the name space. They count in the worker's book.
func New(shared shareddata.Data, space shareddata.Space, flights *inflight.Book) *Guards {
	g := &Guards{shared: shared, flights: flights}
	prefix := space.Key(shareddata.Upstream)
	copy(g.key[:], prefix[:])
	return g
}

// Enter lets a request pass, if it is not shed: Held, Full or Contended.
//
//go:noinline
func (g *Guards) Enter(a *Ask, now quota.Instant) (e Entry, s inflight.State) {
	u := g.findGuard(a, now)
	if u == nil {
		return e, inflight.Held
	}
	if now >= u.used+quota.Instant(quota.Second) {
		u.late = adaptive.Shed{} // No request has come while this worker was late.
	}
	u.used, u.news = now, true
	e = Entry{guard: u, class: a.Rank.Class}
	u.load.Arrived[a.Rank.Class]++
	u.came.Arrived[a.Rank.Class]++
	if u.known.Shed.Sheds(a.Rank, u.classes) || u.late.Sheds(a.Rank, u.classes) {
		u.load.Shed++
		u.countShed(a)
		return e, inflight.Full
	}
	g.seat = inflight.Seat{
		Stream: a.Stream, Key: a.Key, Policy: a.Policy, Exact: true,
		Most: u.known.Limit.Room(a.Rank, &u.known.Shed, u.classes, u.config),
	}
	if s = g.flights.Take(&g.seat, now); s != inflight.Held {
		u.load.Refused++
		u.window.Refused++
		u.countShed(a)
		return e, s
	}
	u.open++
	e.place, e.Room = g.seat.Place, g.seat.Room
	return e, s
}

// countShed counts a request that is shed.
func (u *guard) countShed(a *Ask) {
	if u.group != nil {
		u.group.Shed[a.Rank.Class]++
	}
}

// HoldBack excludes a request that goes on later from the count of requests at the upstream, until
// Send.
//
//go:noinline
func (g *Guards) HoldBack(e *Entry, now quota.Instant) {
	if e.guard != nil && e.place != 0 {
		g.flights.Release(e.place, now)
		e.place = 0
	}
}

// Send notes that a request goes to its upstream. A request that was held back counts again,
// whatever the limit is by now.
//
//go:noinline
func (g *Guards) Send(e *Entry, now quota.Instant) {
	u := e.guard
	if u == nil || e.sent {
		return
	}
	u.countHeld(now)
	u.sent++
	e.sent = true
	if e.place == 0 {
		g.comeBack(e, now)
	}
}

// comeBack takes a place for a request that was held back. If the count of places cannot be
// changed, the request goes on without a place.
//
//go:noinline
func (g *Guards) comeBack(e *Entry, now quota.Instant) {
	u := e.guard
	g.seat = inflight.Seat{
		Key: u.key, Exact: true, Most: max(1, u.known.Limit.Most()), Beyond: inflight.AnyNumber,
	}
	if u.group != nil {
		g.seat.Policy = []byte(u.group.Name)
	}
	if g.flights.Take(&g.seat, now) == inflight.Held {
		e.place = g.seat.Place
	}
}

// Answer notes the time that the upstream took to begin its answer.
func (g *Guards) Answer(e *Entry, latency quota.Span) {
	if e.guard != nil {
		e.guard.window.Latency.Add(latency)
		e.guard.news = true
	}
}

// Report takes in the utilisation that the upstream reports.
func (g *Guards) Report(e *Entry, utilisation float64) {
	if e.WantsReports() {
		e.guard.reports.Add(utilisation)
	}
}

// WantsReports reports whether the guard uses the upstream's reports.
func (e *Entry) WantsReports() bool { return e.guard != nil && e.guard.by&policy.ByORCA != 0 }

// Leave ends a request. A request that was never sent, because another limit refused it, does not
// count as arrived.
//
//go:noinline
func (g *Guards) Leave(e *Entry, now quota.Instant) {
	u := e.guard
	if u == nil {
		return
	}
	u.news = true
	if u.open--; e.sent {
		u.countHeld(now)
		u.sent--
	} else {
		takeBack(&u.load.Arrived[e.class])
		takeBack(&u.came.Arrived[e.class])
	}
	g.HoldBack(e, now)
	e.guard = nil
}

// takeBack takes one from a count of arrived requests, unless the count was passed on before.
func takeBack(arrived *uint32) {
	if *arrived > 0 {
		*arrived--
	}
}

// countHeld adds the time of the requests at the upstream until now.
//
//go:noinline
func (u *guard) countHeld(now quota.Instant) {
	u.window.Held += u.sent * int64(max(now-u.counted, 0))
	u.counted = now
}

// findGuard returns the guard of a request's upstream with the shared knowledge; nil beyond
// maxGuards.
//
//go:noinline
func (g *Guards) findGuard(a *Ask, now quota.Instant) *guard {
	u := g.guardOf(&a.Key)
	if u == nil {
		if u = g.freeGuard(); u == nil {
			return nil
		}
		*u = guard{key: a.Key, counted: now, group: g.flights.Group(a.Policy)}
	}
	u.config = adaptive.Config{Min: a.Limit.Min, Max: a.Limit.Max, Percentile: a.Limit.Percentile}
	u.by, u.classes = a.Limit.By, a.Classes
	if u.looked == 0 || !u.news && now >= u.looked+quota.Instant(mergeEvery) {
		g.readShared(u, now)
		u.known.Rest(now)
	}
	return u
}

// guardOf returns the guard with a key; nil if there is none.
func (g *Guards) guardOf(key *keyhash.Key) *guard {
	for _, u := range g.list {
		if u.key == *key {
			return u
		}
	}
	return nil
}

// freeGuard returns a new guard. If maxGuards are in use, it returns a guard without open requests;
// nil if there is none. The shared knowledge of its old upstream is kept.
//
//go:noinline
func (g *Guards) freeGuard() *guard {
	if len(g.list) < maxGuards {
		u := new(guard)
		g.list = append(g.list, u)
		return u
	}
	for _, u := range g.list {
		if u.open == 0 {
			return u
		}
	}
	return nil
}

// readShared reads the shared knowledge.
//
//go:noinline
func (g *Guards) readShared(u *guard, now quota.Instant) (cas uint32, found bool) {
	copy(g.key[5:], u.key[:])
	value, cas, found := g.shared.Get(g.key[:])
	if !found || !u.known.Decode(value) {
		u.known.Begin(u.config, now)
	}
	u.looked = now
	return cas, found
}
