package wasm

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/wire"
)

func (c *plane) hearMeasures(m *wire.Measures) {
	if len(m.Items) == 0 {
		c.w.t.Error("no measures are reported")
	}
	c.measured++
	for _, one := range m.Items {
		sum := c.measures[string(one.Policy)]
		sum.CandidateRefused += one.CandidateRefused
		sum.ShadowRefused += one.ShadowRefused
		sum.Busy += one.Busy
		sum.Decided += one.Decided
		sum.Refused += one.Refused
		sum.Waited += one.Waited
		sum.Used = max(sum.Used, one.Used)
		c.measures[string(one.Policy)] = sum
	}
}

// Requests in flight are reported for as long as they are, by each worker for itself.
func TestInFlightIsReported(t *testing.T) {
	for mode, limit := range map[string]string{
		"local": `"mode": "local", "limit": {"in_flight": 8}`, "leased": `"mode": "leased", "limit": {"in_flight": 8}`,
		"adaptive": `"mode": "local", "adaptive": {"min": 8, "max": 100}`,
	} {
		w := newWorld(t, fleet{nodes: 1, workers: 2, set: setOf(`{"name": "places", "partition": [], ` + limit + `}`)})
		f := &flight{t: t, host: w.nodes[0]}
		begun := w.now
		for i := range 6 {
			s := f.host.Worker(i % 2).Request(get())
			if s.State() != envoytest.Continued {
				w.advance(300 * time.Millisecond) // The first permits of a leased limit need a call.
			}
			if s.State() != envoytest.Continued {
				t.Fatalf("%s: request %d is not in flight", mode, i)
			}
			f.open = append(f.open, s)
		}
		slack := 6 * (w.now - begun)
		w.advance(30 * time.Second)
		f.endAll()
		ended := w.now
		w.advance(20 * time.Second)
		got, least := w.plane.measures["places"], 6*(ended-begun)-slack
		busy := time.Duration(got.Busy) * time.Millisecond
		if busy < least-100*time.Millisecond || busy > least+slack+100*time.Millisecond {
			t.Errorf("%s: %v were in flight, added up, want %v to %v", mode, busy, least, least+slack)
		}
		if got.Used < 75 || got.Used > 100 {
			t.Errorf("%s: %d %% were in use, want 75", mode, got.Used)
		}
		if n := w.plane.measured; n < 12 || n > 20 {
			t.Errorf("%s: %d messages of two workers in half a minute", mode, n)
		}
		before := w.plane.measured
		w.advance(time.Minute)
		if w.plane.measured != before {
			t.Errorf("%s: %d messages at rest", mode, w.plane.measured-before)
		}
	}
}
