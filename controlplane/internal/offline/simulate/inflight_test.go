package simulate

import (
	"fmt"
	"strings"
	"testing"
)

// Requests are in flight for as long as the log says: at most max_hold, and for no time without it.
func TestInFlight(t *testing.T) {
	log := func(duration string) string {
		var b strings.Builder
		for i := range 10 {
			fmt.Fprintf(&b, `{"time": %d.5, "path": "/"%s}`+"\n", 1_700_000_000+i, duration)
		}
		return b.String()
	}
	for _, c := range []struct {
		limit, duration string
		refused         int64
	}{
		{`limit: {in_flight: 2}`, `, "duration": 3500`, 4}, // Of each four one after the other, two.
		{`limit: {in_flight: 3}`, `, "duration_ms": 2500`, 0},
		{`limit: {in_flight: 2}, max_hold: 1s`, `, "duration": 3500`, 0},
		{`limit: {in_flight: 1}`, ``, 0},
		{`limit: [{quota: 4, window: 1h}, {in_flight: 2}]`, `, "duration": 3500`, 6},
	} {
		set := load(t, "policies:\n  - {name: api, partition: [], mode: local, "+c.limit+"}")
		if got := replay(t, Options{Set: set, Top: 1, Nodes: 1}, log(c.duration)).Result.Refused; got != c.refused {
			t.Errorf("%s %s: %d refused, want %d", c.limit, c.duration, got, c.refused)
		}
	}
}

// No log says how an upstream would have answered under another limit.
func TestAnAdaptiveLimitRefusesNothing(t *testing.T) {
	set := load(t, "policies:\n  - {name: worker, partition: [], adaptive: {min: 1, max: 1}, mode: local}")
	log := `{"time": 1700000000.5, "path": "/", "duration": 3500}` + "\n" + `{"time": 1700000000.6, "path": "/", "duration": 3500}` + "\n"
	r := replay(t, Options{Set: set, Top: 1, Nodes: 1}, log)
	if r.Requests != 2 || r.Result.Refused != 0 || fmt.Sprint(r.Adaptive) != "[worker]" {
		t.Errorf("%+v", r)
	}
	other := load(t, "policies:\n  - {name: worker, partition: [], adaptive: {min: 1, max: 2}, mode: local}\n"+
		"  - {name: gone, partition: [], adaptive: {min: 1, max: 2}, mode: local}")
	if r := replay(t, Options{Set: set, Against: other, Nodes: 1}, log); fmt.Sprint(r.Adaptive) != "[worker gone]" {
		t.Errorf("of both sets: %v", r.Adaptive)
	}
}

// With a max_wait requests wait for a place in their order. At most one request waits for each
// place.
func TestInFlightWaits(t *testing.T) {
	log := func(every, lasts int) string {
		var b strings.Builder
		for i := range 20 {
			fmt.Fprintf(&b, `{"time": %.3f, "path": "/", "duration": %d}`+"\n", 1_700_000_000+float64(i*every)/1000, lasts)
		}
		return b.String()
	}
	for _, c := range []struct {
		limit        string
		every, lasts int
		refused      int64
	}{
		{`{in_flight: 1}`, 1000, 1500, 10},
		{`{in_flight: 1}, max_wait: 600ms`, 1000, 1500, 6}, // Of each three the second waits 0.5 s, and the third would wait 1 s.
		{`{in_flight: 1}, max_wait: 20s`, 1000, 900, 0},
		{`{in_flight: 2}, max_wait: 10s`, 1, 1000, 16}, // Two go on and two wait.
		{`{in_flight: 5}, max_wait: 10s`, 1, 1000, 10},
		{`{in_flight: 5}, max_wait: 500ms`, 1, 1000, 15},
	} {
		set := load(t, "policies:\n  - {name: api, partition: [], mode: local, limit: "+c.limit+"}")
		r := replay(t, Options{Set: set, Top: 1, Nodes: 1}, log(c.every, c.lasts))
		if got := r.Result.Refused; got != c.refused {
			t.Errorf("%s, %d ms each %d ms: %d refused, want %d", c.limit, c.lasts, c.every, got, c.refused)
		}
	}
}

// A candidate is tried for requests that only its own policy refuses, as in the filter.
func TestACandidateOfARefusedRequest(t *testing.T) {
	const api = "policies:\n  - {name: api, partition: [], mode: local, limit: {quota: 2, window: 1h}, " +
		"candidate: {limit: {quota: 5, window: 1h}}}\n  - {name: all, partition: [], mode: local, limit: "
	log := strings.Repeat(`{"time": 1700000000.5, "path": "/"}`+"\n", 8)
	for limit, want := range map[string]int64{
		"{quota: 100, window: 1h}": 3,
		"{quota: 2, window: 2h}":   0, // It refuses the others itself.
	} {
		r := replay(t, Options{Set: load(t, api+limit+"}"), Top: 1, Nodes: 1}, log)
		if got := r.Result.Policies[0].Shadow; got != want || r.Result.Refused != 6 {
			t.Errorf("beside %s: %d would be refused, want %d; %d were", limit, got, want, r.Result.Refused)
		}
	}
}
