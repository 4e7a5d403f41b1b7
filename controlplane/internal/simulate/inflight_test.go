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
