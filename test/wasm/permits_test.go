package wasm

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// leasedPlaces is a policy set of requests in flight over all Envoys.
func leasedPlaces(fields string) string {
	return setOf(`{"name": "places", "partition": [], "mode": "leased", ` + fields + `}`)
}

// rush is requests in flight at several Envoys.
type rush struct {
	*world
	open    []*envoytest.Stream
	pending []*envoytest.Stream
	refused int
}

// begin sends a request, which may have to wait for the control plane.
func (r *rush) begin(node, worker int) {
	r.pending = append(r.pending, r.nodes[node].Worker(worker).Request(get()))
	r.sort()
}

// sort takes in what has become of requests that waited.
func (r *rush) sort() {
	still := r.pending[:0]
	for _, s := range r.pending {
		switch s.State() {
		case envoytest.Continued:
			r.open = append(r.open, s)
		case envoytest.Paused:
			still = append(still, s)
		default:
			r.refused++
		}
	}
	r.pending = still
}

func (r *rush) pass(d time.Duration) { r.run(d, r.sort) }

// end ends a request in one of the ways in which streams end.
func (r *rush) end(i, how int) {
	f := flight{t: r.t, open: r.open}
	f.end(i, how)
	r.open = f.open
}

// fill has so many requests come to the nodes in turn, and returns how many are in flight then.
func (r *rush) fill(n int, nodes ...int) int {
	for i := range n {
		r.begin(nodes[i%len(nodes)], i%r.fleet.workers)
		r.pass(10 * time.Millisecond)
	}
	return len(r.open)
}

func newRush(t *testing.T, f fleet) *rush {
	t.Helper()
	return &rush{world: newWorld(t, f)}
}

// Two Envoys of two workers have as many requests in flight together as the limit says, however
// their streams end, and hold nothing at rest.
func TestLeasedInFlightOverEnvoys(t *testing.T) {
	r := newRush(t, fleet{nodes: 2, workers: 2, set: leasedPlaces(`"limit": {"in_flight": 20}`)})
	random := rand.New(rand.NewPCG(3, 4))
	sum, steps := 0, 0
	for range 4000 {
		if len(r.pending) < 20 {
			r.begin(random.IntN(2), random.IntN(2))
		}
		if len(r.open) > 0 && random.IntN(4) == 0 {
			r.end(random.IntN(len(r.open)), random.IntN(4))
		}
		if random.IntN(2) == 0 {
			r.pass(2 * time.Millisecond)
		}
		if len(r.open) > 20 {
			t.Fatalf("%d in flight", len(r.open))
		}
		sum, steps = sum+len(r.open), steps+1
	}
	if mean := float64(sum) / float64(steps); mean < 19 || r.refused == 0 {
		t.Errorf("%.1f of 20 places in use where more is offered, %d refused", mean, r.refused)
	}
	for len(r.open) > 0 {
		r.end(0, len(r.open)%4)
	}
	r.pass(100 * time.Millisecond) // Those that waited have their places.
	for len(r.open) > 0 {
		r.end(0, 0)
	}
	r.pass(10 * time.Second)
	if held := r.plane.held(); held != 0 {
		t.Errorf("%d permits are held at rest", held)
	}
	if n := r.fill(30, 1); n != 20 {
		t.Errorf("%d at one Envoy then, want 20", n)
	}
}

// While the control plane is away each Envoy has its share, and what it had by permits. When it is
// back all counts, and places that end go to requests that are within the limit.
func TestLeasedInFlightThroughAnOutage(t *testing.T) {
	r := newRush(t, fleet{nodes: 2, workers: 1, set: leasedPlaces(`"limit": {"in_flight": 10}, "on_failure": ["share"]`)})
	if r.fill(1, 1) == 1 { // It knows by the answer how many Envoys there are.
		r.end(0, 0)
	}
	r.pass(8 * time.Second)
	if n := r.fill(9, 0); n != 9 {
		t.Fatalf("%d in flight, want 9", n)
	}
	r.plane.down = true
	r.pass(12 * time.Second)
	if n := r.fill(30, 1); n != 9 { // An answer that is late is no outage yet.
		t.Errorf("%d in flight before the other Envoy takes the control plane for away", n)
	}
	r.pass(2 * time.Second)
	if n := r.fill(20, 0, 1); n != 9+5 {
		t.Errorf("%d in flight in the outage, want 9 and the other's share of 5", n)
	}
	r.plane.down = false
	r.pass(5 * time.Second)
	if held := r.plane.held(); held != 14 {
		t.Errorf("the control plane counts %d, want 14", held)
	}
	for range 4 {
		r.end(0, 0)
		r.pass(20 * time.Millisecond)
	}
	if n := r.fill(10, 0, 1); n != 10 {
		t.Errorf("%d in flight after 4 of 14 have ended, want 10", n)
	}
	r.end(0, 0)
	r.pass(300 * time.Millisecond)
	if n := r.fill(20, 0, 1); n != 10 {
		t.Errorf("%d in flight after one more has ended, want 10", n)
	}
}

// Another limit holds for the next request, for more and for fewer, and requests that run by the
// old policy set count on.
func TestLeasedInFlightWithAnotherLimit(t *testing.T) {
	r := newRush(t, fleet{nodes: 2, workers: 2, set: leasedPlaces(`"limit": {"in_flight": 10}`)})
	r.fill(20, 0, 1)
	r.plane.push(leasedPlaces(`"limit": {"in_flight": 6}`))
	r.pass(12 * time.Second)
	for len(r.open) > 6 {
		r.end(0, 0)
		if before := len(r.open); before >= 6 && r.fill(4, 0, 1) != before {
			t.Fatalf("%d in flight, before %d", len(r.open), before)
		}
	}
	r.plane.push(leasedPlaces(`"limit": {"in_flight": 12}`))
	r.pass(time.Second)
	if n := r.fill(40, 0, 1); n != 12 {
		t.Errorf("%d in flight, want 12", n)
	}
}

// A lower limit holds from the first request by it on, also where an Envoy has permits of the old
// one for more: the Envoys together admit no more than fit beside what is in flight.
func TestALowerLimitHoldsAtOnce(t *testing.T) {
	r := newRush(t, fleet{nodes: 2, workers: 2, set: leasedPlaces(`"limit": {"in_flight": 40}`)})
	r.fill(4, 0, 1)
	r.plane.push(leasedPlaces(`"limit": {"in_flight": 6}`))
	r.pass(time.Second)
	if n := r.fill(40, 0, 1); n > 6 {
		t.Errorf("%d in flight at once, the limit is 6 now", n)
	}
	r.pass(time.Second)
	if n := r.fill(8, 0, 1); n != 6 {
		t.Errorf("%d in flight a second later, want 6", n)
	}
}

// An Envoy that dies costs its places for one lease, and the one that comes in its place has none
// of them.
func TestLeasedInFlightAfterACrash(t *testing.T) {
	r := newRush(t, fleet{nodes: 2, workers: 1, set: leasedPlaces(`"limit": {"in_flight": 10}`)})
	if n := r.fill(10, 0); n != 10 {
		t.Fatalf("%d in flight", n)
	}
	r.nodes[0] = r.start(0) // The old one does nothing any more.
	r.open = nil
	r.pass(3 * time.Second)
	if n := r.fill(10, 1); n != 0 {
		t.Errorf("%d in flight, although another Envoy's requests may still run", n)
	}
	r.pass(8 * time.Second)
	if n := r.fill(30, 1); n != 10 {
		t.Errorf("%d in flight after a lease, want 10", n)
	}
}

// Where there is room a request asks nothing, and an idle Envoy makes no call.
func TestCallsOfLeasedInFlight(t *testing.T) {
	calls := 0
	r := newRush(t, fleet{nodes: 1, workers: 1, set: leasedPlaces(`"limit": {"in_flight": 1000}`), onShared: func(_ int, _ string, key []byte) {
		if key[4] == 'h' || key[4] == 'x' {
			calls++
		}
	}})
	r.fill(1, 0)
	r.pass(time.Second)
	before := r.plane.requests
	const n = 1000
	for range n {
		r.begin(0, 0)
		r.end(1, 0)
		r.pass(time.Millisecond)
	}
	t.Logf("%d calls to the control plane, %d into shared data for %d requests in a second", r.plane.requests-before,
		calls, n)
	if asked := r.plane.requests - before; asked > 3 || len(r.pending)+r.refused > 0 || calls > n/2 {
		t.Errorf("%d calls to the control plane, %d into shared data for %d requests", asked, calls, n)
	}
	r.end(0, 0)
	r.pass(40 * time.Second)
	before, calls = r.plane.requests, 0
	r.pass(10 * time.Second)
	if r.plane.requests > before || calls > 0 {
		t.Errorf("%d calls to the control plane, %d into shared data in ten idle seconds", r.plane.requests-before,
			calls)
	}
}

// A limit that is full through two Envoys is one to the caller, whose places are the other's: it is
// answered as a limit that is full through one.
func TestTheAnswerToPlacesElsewhere(t *testing.T) {
	set := `{"version": "weir/v1", "responses": {"quota": {"status": 420}, "failure": {"status": 504}}, "policies": [
		{"name": "places", "partition": [], "mode": "leased", "limit": {"in_flight": 4}}]}`
	r := newRush(t, fleet{nodes: 2, workers: 1, set: set})
	for node, reason := range []string{"in_flight", "failure"} {
		if n := r.fill(4-len(r.open), 0); n != 4 {
			t.Fatalf("%d in flight", n)
		}
		a := r.request(node, 0, get())
		r.pass(time.Second)
		if d := r.decision(a); a.passed || d.reason != reason || a.stream.Reply().Status != 420 {
			t.Errorf("node %d: %s, passed %v, status %d", node, d.reason, a.passed, a.stream.Reply().Status)
		}
	}
}
