package inflight_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

var games = flag.Int("games", 2000, "how many random games are played")

const (
	ms  = quota.Instant(quota.Millisecond)
	sec = quota.Instant(quota.Second)
)

// node is a process whose workers share the places of some buckets.
type node struct {
	data  *shareddatatest.Data
	now   quota.Instant
	books []*inflight.Book
	seeds uint64
	// acting is the worker whose code runs.
	acting int
}

func newNode(workers int) *node {
	n := &node{data: &shareddatatest.Data{}, now: 1000 * sec}
	for range workers {
		n.books = append(n.books, n.book())
	}
	return n
}

func (n *node) book() *inflight.Book {
	n.seeds++
	return inflight.New(n.data, shareddata.Space{'a'}, 16, n.seeds*77)
}

// pass lets time pass, in which all workers tick.
func (n *node) pass(span quota.Instant) {
	for end := n.now + span; n.now < end; {
		n.now = min(n.now+10*ms, end)
		for i, b := range n.books {
			n.acting = i
			b.Tick(n.now)
		}
	}
}

func seat(key byte, most int64) *inflight.Seat {
	return &inflight.Seat{Key: keyhash.Key{key}, Most: most, Generation: 1, Policy: []byte("p")}
}

// take takes places at a worker until there is none, and returns them.
func (n *node) take(worker int, key byte, most int64) (places []inflight.Place) {
	for {
		s := seat(key, most)
		if n.books[worker].Take(s, n.now) != inflight.Held {
			return places
		}
		places = append(places, s.Place)
	}
}

// All workers together have at most the limit's number of requests in flight, and a place that one
// worker gives back is there for another worker at once, if there is little room, or with the next
// tick.
func TestWorkersShareTheirPlaces(t *testing.T) {
	n := newNode(3)
	first := n.take(0, 1, 20)
	if len(first) != 20 || len(n.take(1, 1, 20)) != 0 {
		t.Fatalf("%d places", len(first))
	}
	n.books[0].Release(first[0], n.now)
	if got := n.take(2, 1, 20); len(got) != 1 {
		t.Errorf("%d places after one came back", len(got))
	}
	for _, p := range first[1:] {
		n.books[0].Release(p, n.now)
	}
	n.pass(20 * ms)
	if got := n.take(1, 1, 20); len(got) != 19 {
		t.Errorf("%d places after two ticks, want 19", len(got))
	}
}

// Where there is room a request that follows another one needs no call.
func TestMostRequestsNeedNoCall(t *testing.T) {
	n := newNode(2)
	calls := 0
	n.data.Before = func(string, []byte) { calls++ }
	var open []inflight.Place
	for range 1000 {
		s := seat(1, 200)
		if n.books[0].Take(s, n.now) != inflight.Held {
			t.Fatal("refused")
		}
		open = append(open, s.Place)
		if len(open) == 10 {
			for _, p := range open {
				n.books[0].Release(p, n.now)
			}
			open = open[:0]
		}
	}
	if calls > 8 {
		t.Errorf("%d calls for 1000 requests, ten at a time", calls)
	}
	n.pass(30 * ms)
	before := calls
	n.pass(500 * ms)
	if calls != before {
		t.Errorf("%d calls while nothing was in flight", calls-before)
	}
}

// A worker whose memory is lost gives its places back once the other workers have seen its mark
// unchanged for ten seconds, and a worker that was merely stopped with them does not.
func TestPlacesOfATrappedWorkerComeBack(t *testing.T) {
	n := newNode(2)
	if len(n.take(0, 1, 5)) != 5 {
		t.Fatal("not all places")
	}
	n.books[0] = n.book() // The new virtual machine knows nothing.
	held := n.take(1, 2, 1)
	n.pass(5 * sec)
	if got := len(n.take(1, 1, 5)); got != 0 {
		t.Errorf("%d places after five seconds", got)
	}
	n.pass(7 * sec)
	if got := len(n.take(1, 1, 5)); got != 5 {
		t.Errorf("%d places after twelve seconds, want 5", got)
	}
	n.now += 3600 * sec // The whole process was stopped.
	n.books[0].Tick(n.now)
	if len(n.take(0, 2, 1)) != 0 {
		t.Error("a worker that was stopped with the others is dead at once")
	}
	n.pass(5 * sec)
	if got := len(n.take(0, 2, 1)); got != 0 {
		t.Errorf("a worker that was stopped with the others lost %d places", got)
	}
	n.books[1].Release(held[0], n.now)
	if got := len(n.take(0, 2, 1)); got != 1 {
		t.Errorf("%d places after the release, want 1", got)
	}
}

// A worker that the others took for dead, since it alone stood still, counts its requests again.
func TestAWorkerThatStoodStillCountsAgain(t *testing.T) {
	n := newNode(2)
	open := n.take(0, 1, 5)
	stopped := n.books[0]
	n.books = n.books[1:]
	if len(n.take(0, 1, 5)) != 0 {
		t.Fatal("took places of a worker that stands still")
	}
	n.pass(15 * sec)
	other := n.take(0, 1, 5)
	if len(other) != 5 {
		t.Fatalf("%d places of the dead, want 5", len(other))
	}
	n.books = append(n.books, stopped)
	n.pass(2 * sec)
	for _, p := range other {
		n.books[0].Release(p, n.now)
	}
	n.pass(20 * ms)
	if got := len(n.take(0, 1, 5)); got != 0 {
		t.Errorf("%d places, although the other worker's five requests are in flight", got)
	}
	for _, p := range open {
		stopped.Release(p, n.now)
	}
	n.pass(20 * ms)
	if got := len(n.take(0, 1, 5)); got != 5 {
		t.Errorf("%d places at rest, want 5", got)
	}
}

// The new entries of such a worker depend on its buckets, not on its requests in flight.
func TestAWorkerThatStoodStillStoresEachBucketOnce(t *testing.T) {
	n := newNode(2)
	stopped := n.books[0]
	if got := len(n.take(0, 1, 1000)); got != 1000 {
		t.Fatalf("%d in flight, want 1000", got)
	}
	n.books = n.books[1:]
	n.take(0, 2, 1) // So the other worker looks on.
	n.pass(15 * sec)
	calls := 0
	n.data.Before = func(string, []byte) { calls++ }
	stopped.Tick(n.now)
	if got := len(n.take(0, 1, 1000)); got != 0 {
		t.Errorf("%d places beside 1000 in flight", got)
	}
	if calls == 0 || calls > 20 {
		t.Errorf("%d calls for one bucket", calls)
	}
}

// measure is what Measure says, as words.
func (n *node) measure(worker int) (text string) {
	n.books[worker].Measure(n.now, func(policy string, busy quota.Span, since quota.Instant, used int64) {
		text += fmt.Sprintf("%s %d since %d up to %d%%", policy, busy/quota.Millisecond, (n.now-since)/ms, used)
	})
	return text
}

// Requests in flight are measured once, to the millisecond, while there are any.
func TestInFlightIsMeasured(t *testing.T) {
	n := newNode(2)
	n.pass(10 * sec)
	want := func(text string) {
		t.Helper()
		if got := n.measure(0); got != text {
			t.Errorf("measured %q, want %q", got, text)
		}
	}
	want("")
	var open []inflight.Place
	for range 3 {
		s := seat(1, 4)
		n.books[0].Take(s, n.now)
		open = append(open, s.Place)
	}
	n.pass(2 * sec)
	n.books[0].Release(open[0], n.now)
	n.pass(1 * sec)
	want("p 8000 since 3000 up to 75%")
	n.pass(5 * sec) // Nothing comes and goes.
	want("p 10000 since 5000 up to 50%")
	if other := n.take(1, 1, 4); len(other) != 2 {
		t.Fatalf("%d places are left", len(other))
	}
	for _, p := range open[1:] {
		n.books[0].Release(p, n.now)
	}
	want("p 0 since 0 up to 50%") // As the first one looked last, half was in use.
	n.pass(60 * sec)
	if n.books[0].Unmeasured() || !n.books[1].Unmeasured() {
		t.Error("the first worker has something to measure, or the other one has nothing")
	}
	want("")
	if got := n.measure(1); got != "p 120000 since 60000 up to 100%" {
		t.Errorf("the other worker measured %q", got)
	}
	// A request that lasts too long is counted until it is counted out.
	s := seat(2, 2)
	s.Hold = 3 * quota.Second
	n.books[0].Take(s, n.now)
	n.pass(10 * sec)
	if got := n.measure(0); got != "p 3000 since 10000 up to 50%" && got != "p 3010 since 10000 up to 50%" {
		t.Errorf("measured %q of a request that was counted out", got)
	}
}

// A request that lasts too long is counted out once, and its end gives nothing back.
func TestMaxHold(t *testing.T) {
	n := newNode(2)
	s := seat(1, 1)
	s.Hold = 2 * quota.Second
	n.books[0].Take(s, n.now)
	n.pass(1900 * ms)
	if len(n.take(1, 1, 1)) != 0 {
		t.Error("counted out too early")
	}
	n.pass(200 * ms)
	next := n.take(1, 1, 1)
	if len(next) != 1 || n.books[0].Stats.CountedOut != 1 || n.books[0].Groups()[0].CountedOut != 1 {
		t.Fatalf("%d places, counted out %d", len(next), n.books[0].Stats.CountedOut)
	}
	n.books[0].Release(s.Place, n.now)
	if len(n.take(0, 1, 1)) != 0 {
		t.Error("the end of a request that was counted out gave a place back")
	}
}

// Waiting requests get places in their order, at most the limit's number waits, and a later request
// does not overtake them.
func TestWaitingIsInOrder(t *testing.T) {
	n := newNode(2)
	b := n.books[0]
	open := n.take(0, 1, 2)
	var waiting []*inflight.Seat
	for i := range 3 {
		s := seat(1, 2)
		s.Stream = uint32(i + 1)
		if took := b.Take(s, n.now); took != inflight.Full {
			t.Fatal("there was a place")
		}
		if b.Wait(s, n.now+sec) != (i < 2) {
			t.Fatalf("request %d", i)
		}
		waiting = append(waiting, s)
	}
	b.Release(open[0], n.now)
	late := seat(1, 2)
	if b.Take(late, n.now) != inflight.Full {
		t.Error("a later request has overtaken")
	}
	if got := fmt.Sprint(b.TakeResolved(10), waiting[0].State == inflight.Held,
		waiting[1].State == inflight.Waiting); got != "[1] true true" {
		t.Error(got)
	}
	n.pass(1010 * ms)
	if got := fmt.Sprint(b.TakeResolved(10), waiting[1].State == inflight.Full); got != "[2] true" {
		t.Error(got)
	}
	// A place that another worker gives back serves a request that waits with the next tick.
	other := n.take(0, 2, 2)
	s := seat(2, 2)
	s.Stream = 9
	n.books[1].Take(s, n.now)
	n.books[1].Wait(s, n.now+sec)
	b.Release(other[0], n.now)
	n.pass(10 * ms)
	if got := fmt.Sprint(n.books[1].TakeResolved(10), s.State == inflight.Held); got != "[9] true" {
		t.Error(got)
	}
}

// A smaller limit takes no place from a request, and admits none until there is room; the limit of
// an older policy set does not come back.
func TestALimitThatChanges(t *testing.T) {
	n := newNode(2)
	open := n.take(0, 1, 4)
	newer := func(most int64) *inflight.Seat {
		s := seat(1, most)
		s.Generation = 2
		return s
	}
	if n.books[1].Take(newer(2), n.now) != inflight.Full {
		t.Error("admitted beyond the smaller limit")
	}
	n.books[0].Release(open[0], n.now)
	n.books[0].Release(open[1], n.now)
	if n.books[1].Take(newer(2), n.now) != inflight.Full {
		t.Error("admitted beyond the smaller limit")
	}
	n.books[0].Release(open[2], n.now)
	if n.books[1].Take(newer(2), n.now) != inflight.Held {
		t.Error("refused below the smaller limit")
	}
	if n.books[0].Take(seat(1, 4), n.now) != inflight.Full {
		t.Error("a worker with an older policy set has brought the older limit back")
	}
	if n.books[1].Take(newer(3), n.now) != inflight.Held {
		t.Error("refused below a larger limit")
	}
}

// A smaller limit holds for waiting requests too: none gets the place of a request that ends until
// there is room. It does not matter which worker gets the first request of the new policy set.
func TestALowerLimitHoldsForThoseThatWait(t *testing.T) {
	for learns, name := range []string{"in the worker in which they wait", "in another worker"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(2)
			open := n.take(0, 1, 4)
			waiting := n.wait(t, 3, 4)
			newer := seat(1, 2)
			newer.Generation = 2
			if n.books[learns].Take(newer, n.now) != inflight.Full {
				t.Fatal("admitted beyond the smaller limit")
			}
			for ended, want := range []int{0, 0, 1, 2} {
				n.books[0].Release(open[ended], n.now)
				if got := held(waiting); got != want {
					t.Errorf("%d of 4 have ended, %d of the waiting requests are admitted, want %d", ended+1, got, want)
				}
			}
		})
	}
}

// A larger limit gives places to waiting requests, before the request that brings it.
func TestALargerLimitServesThoseThatWait(t *testing.T) {
	n := newNode(1)
	n.take(0, 1, 4)
	waiting := n.wait(t, 3, 4)
	newer := seat(1, 6)
	newer.Generation = 2
	if n.books[0].Take(newer, n.now) != inflight.Full {
		t.Error("admitted before the waiting requests")
	}
	if got := held(waiting); got != 2 {
		t.Errorf("%d of 3 that wait are admitted, want 2", got)
	}
	newer = seat(1, 8)
	newer.Generation = 3
	if n.books[0].Take(newer, n.now) != inflight.Held || held(waiting) != 3 {
		t.Errorf("state %d, %d of 3 that wait are admitted; there is room for all", newer.State, held(waiting))
	}
}

// A limit that is raised while more requests are in flight than it allows holds for waiting
// requests too.
func TestALimitRaisedBelowTheNumberInFlight(t *testing.T) {
	n := newNode(1)
	open := n.take(0, 1, 4)
	waiting := n.wait(t, 3, 4)
	for i, limit := range []int64{2, 3} {
		newer := seat(1, limit)
		newer.Generation = uint64(i + 2)
		if n.books[0].Take(newer, n.now) != inflight.Full {
			t.Fatalf("admitted beside 4 in flight by a limit of %d", limit)
		}
	}
	for ended, want := range []int{0, 1, 2, 3} {
		n.books[0].Release(open[ended], n.now)
		if got := held(waiting); got != want {
			t.Errorf("%d of 4 have ended, %d of the waiting requests are admitted, want %d", ended+1, got, want)
		}
	}
}

// wait has requests for key 1 wait in the first worker.
func (n *node) wait(t *testing.T, requests int, most int64) (waiting []*inflight.Seat) {
	t.Helper()
	for range requests {
		s := seat(1, most)
		if n.books[0].Take(s, n.now) != inflight.Full || !n.books[0].Wait(s, n.now+sec) {
			t.Fatal("does not wait")
		}
		waiting = append(waiting, s)
	}
	return waiting
}

// held counts the seats that have a place.
func held(seats []*inflight.Seat) (n int) {
	for _, s := range seats {
		if s.State == inflight.Held {
			n++
		}
	}
	return n
}

// Bytes in the shared data that no filter has written count as nothing.
func TestDamagedSlotsAreReplaced(t *testing.T) {
	n := newNode(1)
	for slot := range byte(4) {
		n.data.Put([]byte{'a', 0, 0, 0, 'h', slot, 0, 0}, []byte("WRF1 damaged bytes that are long enough to be read"))
	}
	n.data.Put([]byte{'a', 0, 0, 0, 'x'}, []byte("dam"))
	if got := len(n.take(0, 1, 3)); got != 3 {
		t.Errorf("%d places", got)
	}
}

// game is one random run of several workers.
type game struct {
	*node
	t      *testing.T
	r      *rand.Rand
	limits [3]int64
	// open are the requests in flight by worker, waits the waiting requests, with their workers.
	open  [][]request
	waits map[*inflight.Seat]int
}

type request struct {
	key   byte
	place inflight.Place
}

func (g *game) inFlight(key byte) (n int64) {
	for _, open := range g.open {
		for _, r := range open {
			if r.key == key {
				n++
			}
		}
	}
	return n
}

func (g *game) step() {
	worker := g.r.IntN(len(g.books))
	g.acting = worker
	switch g.r.IntN(20) {
	default:
		g.begin(worker)
	case 8, 9, 10, 11, 12, 13, 14, 15:
		if open := g.open[worker]; len(open) > 0 {
			i := g.r.IntN(len(open))
			g.books[worker].Release(open[i].place, g.now)
			g.open[worker] = append(open[:i:i], open[i+1:]...)
		}
	case 16, 17, 18:
		g.pass(quota.Instant(g.r.IntN(30)) * ms)
		g.resolve()
	case 19:
		if g.r.IntN(10) == 0 {
			g.trap(worker)
		}
	}
}

func (g *game) begin(worker int) {
	key := byte(g.r.IntN(len(g.limits)))
	s := seat(key, g.limits[key])
	switch g.books[worker].Take(s, g.now) {
	case inflight.Held:
		g.open[worker] = append(g.open[worker], request{key: key, place: s.Place})
	case inflight.Full:
		if s.Stream = uint32(worker); g.r.IntN(4) == 0 &&
			g.books[worker].Wait(s, g.now+quota.Instant(g.r.IntN(100))*ms) {
			g.waits[s] = worker
		}
	}
	if n := g.inFlight(key); n > g.limits[key] {
		g.t.Fatalf("%d requests in flight of %d", n, g.limits[key])
	}
}

// resolve takes in the requests that waited.
func (g *game) resolve() {
	for s, worker := range g.waits {
		switch s.State {
		case inflight.Held:
			g.open[worker] = append(g.open[worker], request{key: s.Key[0], place: s.Place})
			delete(g.waits, s)
		case inflight.Full:
			delete(g.waits, s)
		case inflight.Waiting:
			if g.r.IntN(4) == 0 {
				g.books[worker].Leave(s)
				delete(g.waits, s)
			}
		}
	}
	for _, b := range g.books {
		b.TakeResolved(1000)
	}
	for key, limit := range g.limits {
		if n := g.inFlight(byte(key)); n > limit {
			g.t.Fatalf("%d requests in flight of %d", n, limit)
		}
	}
}

// trap loses the memory of a worker; its requests end with it.
func (g *game) trap(worker int) {
	g.resolve()
	for s, at := range g.waits {
		if at == worker {
			delete(g.waits, s)
		}
	}
	g.books[worker], g.open[worker] = g.book(), nil
}

// In every game of workers that take and give back places, wait for some and trap, never more
// requests are in flight than may be; at rest all places are free.
func TestGames(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range *games {
		g := &game{
			node: newNode(1 + i%5), t: t, r: rand.New(rand.NewPCG(seed, uint64(i))),
			waits: map[*inflight.Seat]int{},
		}
		g.open = make([][]request, len(g.books))
		for k := range g.limits {
			g.limits[k] = 1 + int64(g.r.IntN(1+g.r.IntN(100)))
		}
		switching := false
		g.data.Before = func(op string, _ []byte) {
			if op != "set" || switching || g.r.IntN(10) > 0 {
				return
			}
			switching = true // Another worker comes in between.
			if other := g.r.IntN(len(g.books)); other != g.acting {
				g.begin(other)
			}
			switching = false
		}
		for range 200 {
			g.step()
		}
		g.data.Before = nil
		g.rest()
	}
}

// rest ends all requests and checks that nothing is held.
func (g *game) rest() {
	g.pass(200 * ms)
	g.resolve()
	for s, worker := range g.waits {
		g.books[worker].Leave(s)
	}
	for worker, open := range g.open {
		for _, r := range open {
			g.books[worker].Release(r.place, g.now)
		}
	}
	for range 2 { // A worker looks on at the others only while there are requests.
		for key, limit := range g.limits {
			for _, p := range g.take(0, byte(key), limit) {
				g.books[0].Release(p, g.now)
			}
		}
		g.pass(13 * sec)
	}
	for key, limit := range g.limits {
		worker := g.r.IntN(len(g.books))
		if got := int64(len(g.take(worker, byte(key), limit))); got != limit {
			g.t.Fatalf("%d places at rest, want %d", got, limit)
		}
	}
}
