package wasm

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// leasedPlaces returns a policy set of requests in flight over all Envoys.
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

// sort notes the outcome of the requests that waited.
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

// fill sends n requests to the nodes in turn, and returns how many are in flight then.
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

// Two Envoys of two workers together reach the limit of requests in flight and do not exceed it,
// however their streams end. At rest they hold no permit.
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
	r.pass(100 * time.Millisecond) // The requests that waited have places.
	for len(r.open) > 0 {
		r.end(0, 0)
	}
	r.pass(10 * time.Second)
	if held := r.plane.Held(); held != 0 {
		t.Errorf("%d permits are held at rest", held)
	}
	if n := r.fill(30, 1); n != 20 {
		t.Errorf("%d at one Envoy then, want 20", n)
	}
}

// A lower limit holds from the first request by it on, also if an Envoy has permits for more
// requests of the old limit. The Envoys together admit only the requests that fit beside the
// requests in flight.
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

// If the requests at another Envoy fill a limit, the caller gets the answer of a limit that is full
// at this Envoy.
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
