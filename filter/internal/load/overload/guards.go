// Package overload guards upstreams by adaptive limits.
//
// What the workers of a process know of an upstream is one value in the shared data. Each worker
// adds to it what it has seen, a few times in a window; the one that finds a window at its end has
// the limit take it in. So all go by one limit, none leads, and the limit survives a new
// configuration. The requests at the upstream are counted as those in flight are, exactly.
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
	// maxGuards bounds the upstreams that a worker guards at once; requests to more pass.
	maxGuards = 256
	// mergeEvery is how often a worker adds to the shared value what it has seen.
	mergeEvery = 20 * quota.Millisecond
	// maxAttempts bounds the compare-and-swap loop. What could not be added is added with the
	// next tick.
	maxAttempts = 20
	// lateTicks is how many ticks in a row must come late for a worker to be late: one can be
	// chance.
	lateTicks = 3
)

// Guards are the guards of one worker. Make them with New.
type Guards struct {
	shared  shareddata.Data
	key     [5 + len(keyhash.Key{})]byte
	flights *inflight.Book
	list    []*guard
	seat    inflight.Seat
	value   []byte
	// leastLate is the least by which the last ticks came late, since lateBegan.
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
	// known is what the workers knew together at the instant looked.
	known  adaptive.Upstream
	looked quota.Instant
	// window, load and reports are what this worker has not added yet, if there is news.
	window  adaptive.Window
	load    adaptive.Load
	reports adaptive.Reports
	news    bool
	// late is who is shed because this worker is late, by came, the requests since lateBegan.
	late adaptive.Shed
	came adaptive.Load
	// open are the requests with an Entry, sent those of them that are at the upstream, of which
	// the time is counted up to counted. used is when the last one came.
	open, sent    int64
	counted, used quota.Instant
}

// Ask is a request that a guard is to let through.
type Ask struct {
	Stream uint32
	// Key is the upstream as the policy counts it, Policy the policy's name.
	Key    keyhash.Key
	Policy []byte
	Limit  *policy.Adaptive
	// Rank is of so many Classes.
	Rank    adaptive.Rank
	Classes int
}

// Entry is a request that a guard has let through, until Leave.
type Entry struct {
	guard *guard
	place inflight.Place
	class uint8
	sent  bool
	// Room is how many more of its class could go on.
	Room int64
}

// New makes the guards of a worker of the name space, which count in its book.
func New(shared shareddata.Data, space shareddata.Space, flights *inflight.Book) *Guards {
	g := &Guards{shared: shared, flights: flights}
	prefix := space.Key(shareddata.Upstream)
	copy(g.key[:], prefix[:])
	return g
}

// Enter has a request go on, if it is not shed: Held, Full or Contended.
//
//go:noinline
func (g *Guards) Enter(a *Ask, now quota.Instant) (e Entry, s inflight.State) {
	u := g.find(a, now)
	if u == nil {
		return e, inflight.Held
	}
	if now >= u.used+quota.Instant(quota.Second) {
		u.late = adaptive.Shed{} // Nothing has come that this worker was late with.
	}
	u.used, u.news = now, true
	e = Entry{guard: u, class: a.Rank.Class}
	u.load.Arrived[a.Rank.Class]++
	u.came.Arrived[a.Rank.Class]++
	if u.known.Shed.Sheds(a.Rank, u.classes) || u.late.Sheds(a.Rank, u.classes) {
		u.load.Shed++
		u.shed(a)
		return e, inflight.Full
	}
	g.seat = inflight.Seat{
		Stream: a.Stream, Key: a.Key, Policy: a.Policy, Exact: true,
		Most: u.known.Limit.Room(a.Rank, &u.known.Shed, u.classes, u.config),
	}
	if s = g.flights.Take(&g.seat, now); s != inflight.Held {
		u.load.Refused++
		u.window.Refused++
		u.shed(a)
		return e, s
	}
	u.open++
	e.place, e.Room = g.seat.Place, g.seat.Room
	return e, s
}

// shed counts a request that is shed.
func (u *guard) shed(a *Ask) {
	if u.group != nil {
		u.group.Shed[a.Rank.Class]++
	}
}

// HoldBack has a request that goes on later not count as on its way to the upstream until Send.
//
//go:noinline
func (g *Guards) HoldBack(e *Entry, now quota.Instant) {
	if e.guard != nil && e.place != 0 {
		g.flights.Release(e.place, now)
		e.place = 0
	}
}

// Send notes that a request goes to its upstream. One that was held back counts again, whatever the
// limit is meanwhile.
//
//go:noinline
func (g *Guards) Send(e *Entry, now quota.Instant) {
	u := e.guard
	if u == nil || e.sent {
		return
	}
	u.count(now)
	u.sent++
	e.sent = true
	if e.place == 0 {
		g.comeBack(e, now)
	}
}

// comeBack takes a place for a request that was held back. If the count of places cannot be
// changed, the request goes on without one.
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

// Answer notes how long the upstream took to begin its answer.
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

// WantsReports reports whether the guard goes by what upstreams report.
func (e *Entry) WantsReports() bool { return e.guard != nil && e.guard.by&policy.ByORCA != 0 }

// Leave ends a request. One that was never sent, because another limit refused it, has not come.
//
//go:noinline
func (g *Guards) Leave(e *Entry, now quota.Instant) {
	u := e.guard
	if u == nil {
		return
	}
	u.news = true
	if u.open--; e.sent {
		u.count(now)
		u.sent--
	} else {
		takeBack(&u.load.Arrived[e.class])
		takeBack(&u.came.Arrived[e.class])
	}
	g.HoldBack(e, now)
	e.guard = nil
}

// takeBack counts one less, if what it counted has not been passed on.
func takeBack(arrived *uint32) {
	if *arrived > 0 {
		*arrived--
	}
}

// count counts the time of the requests at the upstream.
//
//go:noinline
func (u *guard) count(now quota.Instant) {
	u.window.Held += u.sent * int64(max(now-u.counted, 0))
	u.counted = now
}

// find is the guard of a request's upstream, with what is known of it; nil beyond the bound.
//
//go:noinline
func (g *Guards) find(a *Ask, now quota.Instant) *guard {
	u := g.guardOf(&a.Key)
	if u == nil {
		if u = g.room(); u == nil {
			return nil
		}
		*u = guard{key: a.Key, counted: now, group: g.flights.Group(a.Policy)}
	}
	u.config = adaptive.Config{Min: a.Limit.Min, Max: a.Limit.Max, Percentile: a.Limit.Percentile}
	u.by, u.classes = a.Limit.By, a.Classes
	if u.looked == 0 || !u.news && now >= u.looked+quota.Instant(mergeEvery) {
		g.read(u, now)
		u.known.Rest(now)
	}
	return u
}

func (g *Guards) guardOf(key *keyhash.Key) *guard {
	for _, u := range g.list {
		if u.key == *key {
			return u
		}
	}
	return nil
}

// room is a new guard or, where there are as many as may be, one that nothing is open of: what the
// workers know of its upstream stays where it is.
//
//go:noinline
func (g *Guards) room() *guard {
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

// read takes in what the workers know together.
//
//go:noinline
func (g *Guards) read(u *guard, now quota.Instant) (cas uint32, found bool) {
	copy(g.key[5:], u.key[:])
	value, cas, found := g.shared.Get(g.key[:])
	if !found || !u.known.Decode(value) {
		u.known.Begin(u.config, now)
	}
	u.looked = now
	return cas, found
}
