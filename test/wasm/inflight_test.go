package wasm

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
)

// places returns a policy set of requests in flight.
func places(fields string) string {
	return setOf(`{"name": "places", "partition": [], "mode": "local", ` + fields + `}`)
}

// flight is requests in flight at one Envoy.
type flight struct {
	t    *testing.T
	host *envoytest.Host
	open []*envoytest.Stream
}

// begin sends a request and reports whether it is in flight now.
func (f *flight) begin(worker int) bool {
	s := f.host.Worker(worker).Request(get())
	if s.State() == envoytest.Continued {
		f.open = append(f.open, s)
		return true
	}
	return false
}

// fill sends requests to a worker until one is refused.
func (f *flight) fill(worker int) (n int) {
	for f.begin(worker) {
		n++
	}
	return n
}

// end ends a request in one of the ways in which streams end.
func (f *flight) end(i int, how int) {
	s := f.open[i]
	f.open = append(f.open[:i:i], f.open[i+1:]...)
	switch how {
	case 0: // The upstream answers.
		s.Respond(200, nil)
	case 1: // The upstream is reset, or times out: Envoy answers itself.
		s.Respond(503, nil)
	case 2: // The client goes away before an answer.
		s.Cancel()
	default: // gRPC: the answer has trailers.
		s.RespondWith(envoytest.Response{Status: 200, Body: []byte("x"), Trailers: [][2]string{{"grpc-status", "0"}}})
	}
}

func (f *flight) endAll() {
	for len(f.open) > 0 {
		f.end(0, len(f.open)%4)
	}
}

// However a stream ends, its place is free then, and the workers of an Envoy together fill the
// limit exactly.
func TestInFlightWorkersTogether(t *testing.T) {
	f := &flight{t: t, host: start(t, envoytest.Options{Workers: 3, PluginConfig: alone(places(`"limit": {"in_flight": 20}`))})}
	r := rand.New(rand.NewPCG(1, 2))
	admitted := 0
	for range 3000 {
		switch worker := r.IntN(3); r.IntN(3) {
		case 0:
			if f.begin(worker) {
				admitted++
			} else if len(f.open) < 15 {
				f.host.Advance(20 * time.Millisecond)
				if !f.begin(worker) {
					t.Fatalf("refused with %d in flight", len(f.open))
				}
			}
		case 1:
			if len(f.open) > 0 {
				f.end(r.IntN(len(f.open)), r.IntN(4))
			}
		default:
			f.host.Advance(time.Duration(r.IntN(15)) * time.Millisecond)
		}
		if len(f.open) > 20 {
			t.Fatalf("%d in flight", len(f.open))
		}
	}
	for worker := range 3 {
		f.endAll()
		f.host.Advance(30 * time.Millisecond)
		if n := f.fill(worker); n != 20 {
			t.Errorf("%d at rest, want 20", n)
		}
	}
	f.host.Advance(20 * time.Millisecond)
	if n, _ := f.host.Metric("weir.policy.places.in_flight.requests"); n != 20 {
		t.Errorf("the gauge is %d, want 20", n)
	}
	if n, _ := f.host.Metric("weir.policy.places.in_flight.limit"); n != 20 {
		t.Errorf("the limit is %d, want 20", n)
	}
	if _, sum, _ := f.host.Histogram("weir.policy.places.in_flight.peak_percent"); sum < 100 {
		t.Errorf("the peaks add up to %d %%", sum)
	}
	if admitted < 500 {
		t.Errorf("only %d were admitted", admitted)
	}
}

// A trap loses the worker's memory. The others get its places once it has shown nothing for ten
// seconds, and no requests beyond the limit before.
func TestATrapGivesItsPlacesBack(t *testing.T) {
	var tr trap
	w := newWorld(t, fleet{nodes: 1, workers: 2, fail: envoytest.FailReload, onShared: tr.hook, set: places(`"limit": {"in_flight": 4}`)})
	f := &flight{t: t, host: w.nodes[0]}
	if f.fill(0) != 4 || f.fill(1) != 0 {
		t.Fatal("not four places")
	}
	tr = trap{armed: true, vm: 0}
	for i := 0; tr.armed && i < 1000; i++ {
		w.advance(10 * time.Millisecond)
		f.begin(0)
	}
	if tr.armed {
		t.Fatal("no trap")
	}
	f.open = nil
	w.advance(5 * time.Second)
	if n := f.fill(1); n != 0 {
		t.Errorf("%d places after five seconds", n)
	}
	for range 10 {
		w.advance(time.Second)
		f.fill(1)
	}
	if len(f.open) != 4 {
		t.Errorf("%d places after fifteen seconds, want 4", len(f.open))
	}
}

// Requests in flight count through a new configuration of the plugin, and their ends give their
// places back to the old and the new one alike.
func TestInFlightThroughANewConfiguration(t *testing.T) {
	set := func(more string) []byte { return alone(places(`"limit": {"in_flight": 5}` + more)) }
	f := &flight{t: t, host: start(t, envoytest.Options{Workers: 2, PluginConfig: set(""), DrainTime: time.Second})}
	if f.fill(0) != 5 {
		t.Fatal("not five places")
	}
	if err := f.host.UpdatePlugin(set(`, "max_hold": "1m"`)); err != nil {
		t.Fatal(err)
	}
	f.host.Advance(100 * time.Millisecond)
	if n := f.fill(1); n != 0 {
		t.Errorf("%d more after the new configuration", n)
	}
	f.host.Advance(5 * time.Second)
	for i := range 5 {
		f.end(0, i%4)
		f.host.Advance(20 * time.Millisecond)
		if !f.begin(i % 2) {
			t.Fatalf("no place after the end of request %d", i)
		}
		if f.begin(1) {
			t.Fatal("one too many")
		}
	}
	f.endAll()
	f.host.Advance(15 * time.Second)
	if n := f.fill(0); n != 5 {
		t.Errorf("%d at rest, want 5", n)
	}
}
