package envoytest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// drive returns a function for Interleave: one request on a worker.
func drive(h *Host, worker int, script string) func() {
	return func() { h.Worker(worker).Request(get("request", script)).Cancel() }
}

// shared returns the shared-data calls of an interleaved run, like "0get 1get 0set 1set".
func shared(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		if op, found := strings.CutSuffix(strings.TrimPrefix(s.Call, "proxy_"), "_shared_data"); found {
			fmt.Fprintf(&b, "%d%s ", s.VM, op)
		}
	}
	return strings.TrimSpace(b.String())
}

// With two workers that read and then write, a few hundred seeds take every order there is, and
// each seed always the same.
func TestInterleaveTakesEveryOrderAndEachSeedOne(t *testing.T) {
	orders := map[string]int{}
	for seed := range uint64(200) {
		run := func() []Step {
			h := start(t, Options{Workers: 2})
			return h.Interleave(seed, drive(h, 0, "shared-get k; shared-set k 0 0"),
				drive(h, 1, "shared-get k; shared-set k 1 0"))
		}
		steps := run()
		orders[shared(steps)]++
		if seed%10 == 0 && !slices.Equal(steps, run()) {
			t.Errorf("seed %d gave two different runs", seed)
		}
	}
	for _, order := range []string{
		"0get 0set 1get 1set", "0get 1get 0set 1set", "0get 1get 1set 0set", "1get 0get 0set 1set",
		"1get 0get 1set 0set", "1get 1set 0get 0set",
	} {
		if orders[order] == 0 {
			t.Errorf("no seed took the order %s: %v", order, orders)
		}
	}
	if len(orders) != 6 {
		t.Errorf("orders %v, want 6", orders)
	}
}

// A guest that compares and swaps loses no update in any order. A guest that writes without
// comparing loses updates in some orders.
func TestInterleaveFindsALostUpdate(t *testing.T) {
	for _, c := range []struct {
		name  string
		cas   func(uint32) uint32
		loses bool
	}{{"compare and swap", nil, false}, {"written regardless", func(uint32) uint32 { return 0 }, true}} {
		lost := 0
		for seed := range uint64(50) {
			h := start(t, Options{Workers: 3, Cas: c.cas})
			h.SetShared("k", []byte("0"))
			h.Interleave(seed, drive(h, 0, "shared-add k"), drive(h, 1, "shared-add k"), drive(h, 2, "shared-add k"))
			if value, _, _ := h.Shared("k"); string(value) != "3" {
				lost++
			}
		}
		if (lost > 0) != c.loses {
			t.Errorf("%s: %d of 50 runs lost an update", c.name, lost)
		}
	}
}

// Two functions may want one worker: the second waits until the first has left it, whatever the
// seed.
func TestInterleaveOnOneWorker(t *testing.T) {
	for seed := range uint64(50) {
		h := start(t, Options{})
		steps := h.Interleave(seed, drive(h, 0, "shared-get k; shared-set k 0 0"),
			drive(h, 0, "shared-get k; shared-set k 1 0"))
		if got := shared(steps); got != "0get 0set 0get 0set" {
			t.Errorf("seed %d: %s", seed, got)
		}
	}
}

func TestInterleaveOfNothingAndOfAnEndedGoroutine(t *testing.T) {
	h := start(t, Options{})
	if steps := h.Interleave(1); len(steps) != 0 {
		t.Errorf("steps %v", steps)
	}
	ran := false
	h.Interleave(1, runtime.Goexit, func() { ran = true })
	if !ran {
		t.Error("the other function did not run")
	}
}

func TestInterleaveDoesNotNest(t *testing.T) {
	h := start(t, Options{})
	var reason any
	h.Interleave(1, func() {
		defer func() { reason = recover() }()
		h.Interleave(2)
	})
	if reason == nil {
		t.Error("a run inside a run was accepted")
	}
}

// The ticks of all VMs come at once: their host calls mix, and time is the same for all of them.
func TestAdvanceAtOnce(t *testing.T) {
	run := func(seed uint64) string {
		h := start(t, Options{Workers: 2,
			PluginConfig: []byte("configure: tick 100\ntick: shared-get k; shared-set k 1 0")})
		steps := h.AdvanceAtOnce(seed, 250*time.Millisecond)
		if n := h.Stats().Entries["proxy_on_tick"]; n != 6 || h.Monotonic() != bootOffset+250*time.Millisecond {
			t.Errorf("%d ticks by %v", n, h.Monotonic())
		}
		return shared(steps)
	}
	runs := map[string]bool{}
	for seed := range uint64(20) {
		first := run(seed)
		runs[first] = true
		if again := run(seed); again != first {
			t.Errorf("seed %d: %s, and then %s", seed, first, again)
		}
	}
	if len(runs) < 15 {
		t.Errorf("20 seeds gave %d runs", len(runs))
	}
}
