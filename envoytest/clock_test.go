package envoytest

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// ticks returns the times, in milliseconds after the start, of the ticks of each VM.
func ticks(h *Host) map[int][]int64 {
	at := map[int][]int64{}
	for _, l := range h.Logs() {
		if l.Text == "tick" {
			at[l.VM] = append(at[l.VM], l.At.Sub(h.opt.Start).Milliseconds())
		}
	}
	return at
}

func TestTicksOfAllVMs(t *testing.T) {
	h := start(t, Options{Workers: 2, PluginConfig: []byte("configure: tick 100\ntick: log 2 tick")})
	h.Advance(99 * time.Millisecond)
	h.Advance(1 * time.Millisecond)
	h.Advance(250 * time.Millisecond)
	for _, vm := range []int{Main, 0, 1} {
		if got := ticks(h)[vm]; !slices.Equal(got, []int64{100, 200, 300}) {
			t.Errorf("VM %d ticks at %v ms", vm, got)
		}
	}
	if d := h.Now().Sub(h.opt.Start); d != 350*time.Millisecond {
		t.Errorf("%v have passed", d)
	}
}

func TestChangedTickPeriod(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []int64
	}{
		{"later", "tick 100", []int64{150, 250, 350}}, // set at 50 ms
		{"stopped", "tick 0", nil},
		{"twice", "tick 500; tick 100", []int64{150, 250, 350}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := start(t, Options{PluginConfig: []byte("configure: tick 60\ntick: log 2 tick")})
			h.Advance(50 * time.Millisecond)
			do(h, 0, c.script)
			h.Advance(300 * time.Millisecond)
			if got := ticks(h)[0]; !slices.Equal(got, c.want) {
				t.Errorf("ticks at %v ms, want %v", got, c.want)
			}
		})
	}
}

func TestPeriodChangedInsideATick(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 100\ntick: log 2 tick; tick 30")})
	h.Advance(170 * time.Millisecond)
	if got := ticks(h)[0]; !slices.Equal(got, []int64{100, 130, 160}) {
		t.Errorf("ticks at %v ms", got)
	}
}

// Ticks, answers and timeouts come in the order of their times.
func TestAdvanceKeepsTimeOrder(t *testing.T) {
	h := start(t, Options{
		PluginConfig: []byte("configure: tick 100\ntick: log 2 tick"),
		Calls: func(c *Call) {
			if c.Header("x-answer") != "" {
				c.Respond(150*time.Millisecond, 200, nil, nil)
			}
		},
	})
	do(h, 0, "tick 100; call c 250 :method=GET :path=/ :authority=a; call c 1000 :method=GET :path=/ :authority=a "+
		"x-answer=1")
	mark := h.logLength()
	h.Advance(300 * time.Millisecond)
	var got []string
	for _, l := range h.Logs()[mark:] {
		if l.VM == 0 && l.Text != "tick: log 2 tick = ok" {
			got = append(got, fmt.Sprint(l.At.Sub(h.opt.Start).Milliseconds(), " ", l.Text))
		}
	}
	equal(t, got, "100 tick", "150 call: answered 8 headers 1 body 0", "200 tick",
		"250 call: answered 4 headers 3 body 24", "300 tick")
}

func TestClocks(t *testing.T) {
	begin := time.Date(2025, 2, 3, 4, 5, 6, 7, time.UTC)
	h := start(t, Options{Start: begin})
	h.Advance(3 * time.Second)
	h.StepWallClock(-time.Hour)
	wall := begin.Add(3*time.Second - time.Hour)
	if h.Now() != wall || h.Monotonic() != bootOffset+3*time.Second {
		t.Errorf("now %v, monotonic %v", h.Now(), h.Monotonic())
	}
	equal(t, do(h, 0, "time; clock 0; clock 1; clock 2; clock 3"),
		fmt.Sprint("ok ", wall.UnixNano()), fmt.Sprint("errno 0 ", wall.UnixNano()),
		fmt.Sprint("errno 0 ", int64(bootOffset+3*time.Second)), "errno 58 0", "errno 58 0")
}

// The clock that a guest reads jumps. After a jump forward, a tick that was due meanwhile fires
// late, once. After a jump back, nothing fires until the clock is where it was.
func TestStepMonotonicClock(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 100\ntick: log 2 tick")})
	wall := h.Now()
	h.StepMonotonicClock(time.Hour)
	equal(t, do(h, 0, "clock 1"), fmt.Sprint("errno 0 ", int64(bootOffset+time.Hour)))
	if h.Now() != wall {
		t.Errorf("the wall clock went from %v to %v", wall, h.Now())
	}
	h.Advance(0)
	if got := ticks(h)[0]; len(got) != 1 {
		t.Errorf("%d ticks were late, want 1", len(got))
	}
	h.StepMonotonicClock(-time.Hour)
	equal(t, do(h, 0, "clock 1"), fmt.Sprint("errno 0 ", int64(bootOffset)))
	h.Advance(time.Minute)
	if got := ticks(h)[0]; len(got) != 1 {
		t.Errorf("%d ticks, want none before the clock has caught up", len(got)-1)
	}
}
