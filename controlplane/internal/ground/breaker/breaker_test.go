package breaker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
)

const ms = time.Millisecond

// A timeline is written as steps: after how long something happens, what, and the state then.
type step struct {
	pass time.Duration
	// event is "ask" for a request that may go through, "no" for a request that may not, "ok" or
	// "fail" for the end of an allowed request.
	event string
	state breaker.State
}

func run(t *testing.T, luck float64, steps []step) {
	t.Helper()
	var b breaker.Breaker
	now := time.Unix(1000, 0)
	for i, s := range steps {
		now = now.Add(s.pass)
		switch s.event {
		case "ask", "no":
			if b.Allow(now) != (s.event == "ask") {
				t.Errorf("step %d: %s: it is not so", i, s.event)
			}
		default:
			b.Report(now, s.event == "ok", luck)
		}
		if b.State() != s.state {
			t.Errorf("step %d, %s: %v, want %v", i, s.event, b.State(), s.state)
		}
	}
}

func TestTimelines(t *testing.T) {
	closed, half, open := breaker.Closed, breaker.HalfOpen, breaker.Open
	fails := slices.Repeat([]step{{ms, "fail", closed}}, breaker.Tolerated-1)
	opened := append(slices.Clone(fails), step{ms, "fail", open})
	for _, c := range []struct {
		name  string
		luck  float64
		steps []step
	}{
		{"it is closed at first", 0, []step{{0, "ask", closed}, {0, "ok", closed}, {0, "ask", closed}}},
		{"failures that are not in a row are tolerated", 0,
			slices.Concat(fails, []step{{0, "ok", closed}}, fails, []step{{0, "ask", closed}})},
		{"the fifth failure opens it, and one trial closes it", 0.5, append(slices.Clone(opened),
			step{249 * ms, "no", open}, step{ms, "ask", half}, step{0, "no", half}, step{0, "ok", closed},
			step{0, "ask", closed})},
		{"the shortest rest", 0, append(slices.Clone(opened), step{187 * ms, "no", open}, step{ms, "ask", half})},
		{"the longest rest", 1, append(slices.Clone(opened), step{312 * ms, "no", open}, step{ms, "ask", half})},
		{"a trial that fails opens it again, for another rest", 0.5, append(slices.Clone(opened),
			step{250 * ms, "ask", half}, step{40 * ms, "fail", open}, step{249 * ms, "no", open}, step{ms, "ask", half},
			step{0, "ok", closed})},
		{"after a trial a single failure is tolerated again", 0.5, append(slices.Clone(opened),
			step{250 * ms, "ask", half}, step{0, "ok", closed}, step{0, "fail", closed}, step{0, "ask", closed})},
		{"a trial whose caller went away is made again", 0.5, append(slices.Clone(opened),
			step{250 * ms, "ask", half}, step{249 * ms, "no", half}, step{ms, "ask", half})},
		{"who was under way when it opened changes nothing by failing", 0.5, append(slices.Clone(opened),
			step{200 * ms, "fail", open}, step{50 * ms, "ask", half})},
		{"who was under way when it opened closes it by an answer", 0.5,
			append(slices.Clone(opened), step{10 * ms, "ok", closed}, step{0, "ask", closed})},
	} {
		t.Run(c.name, func(t *testing.T) { run(t, c.luck, c.steps) })
	}
}

// Each transition is reported once, with its cause and how long the breaker was not closed; others
// are not touched.
func TestGroupTellsOfChanges(t *testing.T) {
	now, broken := time.Unix(1000, 0), errors.New("broken")
	var told []string
	g := breaker.NewGroup(func() time.Time { return now }, func() float64 { return 0.5 }, func(c breaker.Change) {
		told = append(told, fmt.Sprintf("%s %v>%v %v %v", c.Name, c.From, c.To, c.After, c.Cause))
	})
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("reported %q, want %q", told, want)
		}
		told = nil
	}
	for range 9 {
		g.Report("a", broken)
		now = now.Add(ms)
	}
	expect("a closed>open 0s broken")
	if g.Closed("a") || !g.Closed("b") || !g.Allow("b") || g.Allow("a") || g.Failing("a") != 9*ms ||
		g.Failing("b") != 0 {
		t.Error("the wrong one is open")
	}
	now = now.Add(300 * ms)
	if !g.Allow("a") || g.Allow("a") {
		t.Error("not one trial")
	}
	g.Report("a", broken)
	expect("a open>half-open 305ms <nil>", "a half-open>open 305ms broken")
	now = now.Add(time.Second)
	g.Allow("a")
	g.Report("a", nil)
	expect("a open>half-open 1.305s <nil>", "a half-open>closed 1.305s <nil>")
	if g.Failing("a") != 0 || !g.Allow("a") {
		t.Error("it is not closed")
	}
	g.Refused("a")
	now = now.Add(3 * time.Second)
	if !g.Closed("a") || g.Failing("a") != 3*time.Second {
		t.Error("a call that is refused at once is not away, but fails")
	}
	for range 5 {
		g.Report("c", broken)
	}
	g.Keep(map[string]bool{"a": true})
	expect("c closed>open 0s broken", "c open>closed 0s <nil>")
}
