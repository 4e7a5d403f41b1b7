package inflight_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	shared "github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// fleet is some nodes that share one bucket by permits of a control plane.
type fleet struct {
	nodes  []*envoy
	ledger shared.Ledger
	now    quota.Instant
	limit  int64
	// doubt is until when the ledger has lost the nodes' permits.
	doubt quota.Instant
	// trip is how long a message takes one way.
	trip  quota.Instant
	calls int
	todo  vtimetest.Queue[quota.Instant]
	// crashes is how many nodes have crashed.
	crashes int
	// rough, if set, loses messages, doubles them and has some take long.
	rough *rand.Rand
}

// envoy is a node of a fleet.
type envoy struct {
	*node
	id shared.Node
	// cut: no message reaches the control plane, or comes from it.
	cut  bool
	open int64
	// until is until when the node's permits last, beyond how many of its requests were in flight
	// when they ran out.
	until  quota.Instant
	beyond int64
	// crashed: it does nothing any more.
	crashed bool
	// waits are the waiting seats, and the calls at their end.
	waits map[*inflight.Seat]func(held bool)
}

func newFleet(limit int64, nodes, workers int) *fleet {
	f := &fleet{limit: limit, now: 1000 * sec, trip: ms}
	for i := range nodes {
		f.nodes = append(f.nodes, f.newEnvoy(fmt.Sprint(i), workers))
	}
	return f
}

func (f *fleet) newEnvoy(id string, workers int) *envoy {
	e := &envoy{node: newNode(workers), id: shared.Node{ID: id}, waits: map[*inflight.Seat]func(bool){}}
	for w := range workers {
		f.tick(e, w)
	}
	return e
}

func (f *fleet) at(at quota.Instant, do func()) { f.todo.Add(at, do) }

// tick has a worker of a node tick every ten milliseconds.
func (f *fleet) tick(e *envoy, worker int) {
	f.at(f.now+10*ms, func() {
		if e.crashed {
			return
		}
		e.books[worker].Tick(f.now)
		f.claim(e, worker)
		f.tick(e, worker)
	})
}

// claim sends the claims of a worker that are due.
func (f *fleet) claim(e *envoy, worker int) {
	b := e.books[worker]
	for _, c := range b.Claims(f.now, 64) {
		f.calls++
		if e.cut {
			continue
		}
		m, sent := c.Claim, f.now
		m.Node, m.Nodes = e.id, int64(len(f.nodes))
		f.send(func() {
			var a shared.Answer
			m.Doubt = quota.Span(max(f.doubt-f.now, 0))
			f.ledger, a = f.ledger.Claim(f.now, m)
			f.send(func() {
				if e.cut || e.crashed || b != e.books[worker] {
					return
				}
				f.learn(e, sent, a)
				b.Learn(c.Key, m.Seq, a, f.now)
				f.resume(e)
			})
		})
	}
	f.resume(e)
}

// learn notes the time for which an answer lets a node admit requests. Permits beyond the limit at
// a node that comes back stay. The ledger has the permits of all nodes, unless it has lost them.
func (f *fleet) learn(e *envoy, sent quota.Instant, a shared.Answer) {
	until := sent + quota.Instant(a.For)
	if a.For == 0 || until <= e.until {
		return
	}
	if f.now >= e.until {
		e.beyond = e.open
	}
	e.until = until
	if f.now >= f.doubt && f.ledger.Held(f.now) <= f.limit {
		e.beyond = 0
	}
}

// send has a message arrive.
func (f *fleet) send(arrive func()) {
	if f.rough == nil {
		f.at(f.now+f.trip, arrive)
		return
	}
	if f.rough.IntN(8) == 0 {
		return
	}
	for range 1 + f.rough.IntN(2)*f.rough.IntN(2) {
		at := f.now + f.trip + quota.Instant(f.rough.Int64N(int64(30*ms)))
		if f.rough.IntN(10) == 0 {
			at += quota.Instant(f.rough.Int64N(int64(2 * shared.TTL)))
		}
		f.at(at, arrive)
	}
}

// resume goes on with the requests of a node that have waited.
func (f *fleet) resume(e *envoy) {
	for s, then := range e.waits {
		if s.State != inflight.Waiting {
			delete(e.waits, s)
			then(s.State == inflight.Held)
		}
	}
	for _, b := range e.books {
		b.TakeResolved(1000)
	}
}

func (f *fleet) run(until quota.Instant) {
	for e, ok := f.todo.Next(until); ok; e, ok = f.todo.Next(until) {
		f.now = e.At
		e.Fire()
	}
	f.now = until
}

func (f *fleet) inFlight() (n int64) {
	for _, e := range f.nodes {
		n += e.open
	}
	return n
}

func (f *fleet) seat() *inflight.Seat {
	s := seat(1, f.limit)
	s.Leased, s.Version = true, 7
	return s
}

// begin sends a request to a worker. Once admitted it lasts for a time. It reports by done whether
// it was admitted.
func (f *fleet) begin(e *envoy, worker int, lasts quota.Instant, done func(admitted bool)) {
	s := f.seat()
	b := e.books[worker]
	end := func(held bool) {
		if !held {
			done(false)
			return
		}
		e.open++
		f.at(f.now+lasts, func() {
			if e.crashed || b != e.books[worker] {
				return // It ended with its worker.
			}
			e.open--
			e.beyond = min(e.beyond, e.open)
			b.Release(s.Place, f.now)
			done(true)
			f.resume(e)
		})
	}
	switch b.Take(s, f.now) {
	case inflight.Held:
		end(true)
	case inflight.Full:
		if !s.Asks || !b.Wait(s, f.now+50*ms) {
			end(false)
			return
		}
		e.waits[s] = end
		f.claim(e, worker)
	default:
		end(false)
	}
}

// A first request has a permit after one round trip, and later requests at a steady pace do not
// wait.
func TestASteadyLoadDoesNotWaitForPermits(t *testing.T) {
	f := newFleet(100, 3, 2)
	waited, refused := 0, 0
	for i := range 2000 {
		f.run(f.now + 5*ms)
		f.begin(f.nodes[i%3], i%2, 60*ms, func(admitted bool) {
			if !admitted {
				refused++
			}
		})
		for _, e := range f.nodes {
			waited += len(e.waits)
		}
	}
	if refused > 0 || waited > 10 {
		t.Errorf("%d refused, %d waited", refused, waited)
	}
	if f.calls > 50 {
		t.Errorf("%d calls in 10 s", f.calls)
	}
}

// Two nodes with more clients than permits have together the requests in flight of one exact
// counter, never more, and each node has its part.
func TestPermitsAreUsed(t *testing.T) {
	for _, c := range []struct {
		limit          int64
		nodes, workers int
		clients        int
	}{{20, 2, 2, 200}, {20, 2, 2, 30}, {3, 2, 1, 20}, {100, 5, 2, 400}, {20, 2, 2, 21}} {
		f := newFleet(c.limit, c.nodes, c.workers)
		r := rand.New(rand.NewPCG(1, uint64(c.limit)))
		served, most, used := make([]int, c.nodes), int64(0), int64(0)
		for i := range c.clients {
			e := f.nodes[i%c.nodes]
			if i*5 < c.clients*3 { // More of them come to the first node.
				e = f.nodes[0]
			}
			var next func()
			next = func() {
				lasts := quota.Instant(5+r.IntN(30)*r.IntN(70)) * ms
				if r.IntN(3) == 0 {
					lasts /= 2
				}
				f.begin(e, r.IntN(c.workers), lasts, func(admitted bool) {
					most = max(most, f.inFlight())
					if admitted {
						for n := range f.nodes {
							if f.nodes[n] == e {
								served[n]++
							}
						}
						f.at(f.now+ms, next)
					} else {
						f.at(f.now+quota.Instant(1+r.IntN(20))*ms, next)
					}
				})
				most = max(most, f.inFlight())
			}
			f.at(f.now+quota.Instant(r.IntN(1000))*ms, next)
		}
		f.run(f.now + 5*sec)
		steps := int64(1000)
		for range steps {
			f.run(f.now + 10*ms)
			used += f.inFlight()
		}
		part := float64(used*100) / float64(steps*c.limit)
		t.Logf("%+v: %.1f %% used, at most %d, served %v, %d calls", c, part, most, served, f.calls)
		if most > c.limit || part < 97 {
			t.Errorf("%+v: at most %d in flight, %.1f %% of the permits used", c, most, part)
		}
		for _, n := range served {
			if n == 0 {
				t.Errorf("%+v: a node has got none: %v", c, served)
			}
		}
	}
}

// A node that was cut off comes back with requests in flight whose permits other nodes have. None
// of its waiting requests gets the place of a request that ends, so that the fleet comes back
// within the limit.
func TestANodeThatComesBackFillsNoPlace(t *testing.T) {
	f := newFleet(6, 2, 2)
	back, other := f.nodes[0], f.nodes[1]
	for i := range 3 {
		f.begin(back, i%2, 20*sec+quota.Instant(i)*sec, func(bool) {})
		f.run(f.now + 100*ms)
	}
	back.cut = true
	f.run(f.now + 12*sec)
	for range 2 * f.limit {
		f.begin(other, 0, 60*sec, func(bool) {})
		f.run(f.now + 100*ms)
	}
	back.cut = false
	f.run(f.now + sec)
	if back.open != 3 || other.open != f.limit {
		t.Fatalf("%d in flight at the node that was cut off, %d at the other, want 3 and %d",
			back.open, other.open, f.limit)
	}
	for back.open > 0 {
		before := back.open
		for i := range 2 { // They wait for a patient time, in both workers.
			s := f.seat()
			s.Patient = true
			if back.books[i].Take(s, f.now) == inflight.Held {
				t.Fatalf("admitted beside %d in flight of %d", f.inFlight(), f.limit)
			}
			back.books[i].Wait(s, f.now+400*ms)
			back.waits[s] = func(held bool) {
				if held {
					t.Errorf("a waiting request is admitted beside %d in flight of %d", f.inFlight(), f.limit)
				}
			}
		}
		f.run(f.now + 300*ms)
		if back.open > before || t.Failed() {
			t.Fatalf("%d in flight after %d", back.open, before)
		}
	}
}

// roughGame is nodes that crash, a store that loses its state, and links that are cut and lose,
// double and delay messages.
type roughGame struct {
	*fleet
	t *testing.T
	r *rand.Rand
}

func (g *roughGame) step() {
	i := g.r.IntN(len(g.nodes))
	e := g.nodes[i]
	switch g.r.IntN(40) {
	default:
		lasts := quota.Instant(g.r.Int64N(int64(2 * sec)))
		if g.r.IntN(8) == 0 {
			lasts *= 15
		}
		g.begin(e, g.r.IntN(len(e.books)), lasts, func(bool) {})
	case 0:
		if g.r.IntN(4) == 0 { // It crashes, and its requests with it.
			e.crashed, e.open, e.beyond = true, 0, 0
			g.crashes++
			g.nodes[i] = g.newEnvoy(fmt.Sprint("again ", g.crashes), len(e.books))
		}
	case 1:
		e.cut = !e.cut
	case 2:
		g.run(g.now + quota.Instant(g.r.Int64N(int64(shared.TTL))))
	case 3:
		if g.r.IntN(8) == 0 { // The store loses its state.
			g.ledger, g.doubt = shared.Ledger{}, g.now+quota.Instant(shared.TTL)
		}
	}
	g.run(g.now + quota.Instant(g.r.Int64N(int64(20*ms))))
	g.check()
}

// check checks the bound: the requests in flight are within the limit, except requests of nodes
// whose permits ran out.
func (g *roughGame) check() {
	sum := int64(0)
	for _, e := range g.nodes {
		if g.now >= e.until {
			e.beyond = e.open
		}
		sum += e.open - e.beyond
	}
	if sum > g.limit {
		g.t.Fatalf("%d in flight of %d", sum, g.limit)
	}
}

// In every game over nodes the requests in flight are never above the limit, except requests of
// nodes that were cut off for longer than a lease. At rest the control plane records nothing, and
// all permits can be had again.
func TestGamesOverNodes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range max(*games/20, 20) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		g := &roughGame{fleet: newFleet(1+r.Int64N(1+r.Int64N(60)), 1+r.IntN(3), 1+r.IntN(2)), t: t, r: r}
		g.rough = r
		for range 300 {
			g.step()
		}
		g.rough = nil
		for _, e := range g.nodes {
			e.cut = false
		}
		g.run(g.now + 5*quota.Instant(shared.TTL)) // Messages may take two of them to arrive.
		g.check()
		if held, open := g.ledger.Held(g.now), g.inFlight(); held != 0 || open != 0 {
			t.Fatalf("game %d: %d permits are held at rest, %d in flight", i, held, open)
		}
		for range g.limit + 40 {
			g.begin(g.nodes[0], 0, 20*sec, func(bool) {})
			g.run(g.now + 100*ms)
		}
		if admitted := g.inFlight(); admitted != g.limit {
			t.Fatalf("game %d: %d of %d permits can be had", i, admitted, g.limit)
		}
	}
}
