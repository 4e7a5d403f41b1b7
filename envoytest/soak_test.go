package envoytest

import (
	"strconv"
	"sync"
	"testing"
	"time"
)

// Requests, ticks, calls and updates from several goroutines at once: nothing is lost, and the race
// detector is silent.
func TestEverythingAtOnce(t *testing.T) {
	const workers, each = 3, 100
	h := start(t, Options{
		Workers: workers, PluginConfig: []byte("configure: tick 10\ntick: shared-add ticks; " + callUp),
		Calls: func(c *Call) { c.Respond(5*time.Millisecond, 200, nil, nil) },
	})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				s := h.Worker(w).Request(get("request", "shared-add hits", "response", "header-add 2 x 1"))
				if r := s.Respond(200, nil); r == nil || r.Header("x") != "1" {
					t.Errorf("worker %d: the client got %+v", w, r)
				}
			}
		})
	}
	for i := range 20 {
		h.Advance(10 * time.Millisecond)
		h.Stats()
		if i == 10 {
			update(t, h, "configure: tick 10; log 2 new\ntick: shared-add ticks")
		}
	}
	wg.Wait()
	if value, _, _ := h.Shared("hits"); string(value) != "300" {
		t.Errorf("%s hits, want 300", value)
	}
	// An old root context ticks beside the new root context while a stream holds it, so a VM may
	// have more than 20 ticks.
	delivered := h.Stats().Entries["proxy_on_tick"]
	if value, _, _ := h.Shared("ticks"); string(value) != strconv.FormatUint(delivered, 10) || delivered < 20*4 {
		t.Errorf("%s ticks counted of %d delivered, want all, and 20 in each of 4 VMs at least", value, delivered)
	}
}

// The host keeps nothing of a stream that has ended.
func TestManyRequestsLeaveNothingBehind(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("a: 1")})
	request := get()
	run := func(n int) {
		for range n {
			h.Worker(0).Request(request).Respond(200, nil)
		}
	}
	run(1000)
	memory, logs := h.MemoryBytes(0), h.logLength()
	run(20_000)
	v := h.workers[0].current.vm
	if len(v.contexts) != 2 || h.workers[0].current.streams != 0 || len(v.actions) != 0 {
		t.Errorf("%d contexts and %d streams are left", len(v.contexts), h.workers[0].current.streams)
	}
	if h.logLength() != logs {
		t.Error("the log has grown")
	}
	if h.MemoryBytes(0) != memory {
		t.Errorf("the guest's memory went from %d to %d", memory, h.MemoryBytes(0))
	}
}

// One operation is a request that the guest lets pass, and its answer.
func BenchmarkRequest(b *testing.B) {
	h := guest.New(Options{T: b})
	defer h.Close()
	if err := h.Start(); err != nil {
		b.Fatal(err)
	}
	request := get()
	b.ReportAllocs()
	for b.Loop() {
		if r := h.Worker(0).Request(request).Respond(200, nil); r == nil || r.Status != 200 || r.Local {
			b.Fatalf("%+v", r)
		}
	}
}

// One operation is the same with a number in shared data that the guest counts up.
func BenchmarkSharedAdd(b *testing.B) {
	h := guest.New(Options{T: b})
	defer h.Close()
	if err := h.Start(); err != nil {
		b.Fatal(err)
	}
	request := get("request", "shared-add k")
	b.ReportAllocs()
	for b.Loop() {
		h.Worker(0).Request(request).Respond(200, nil)
	}
	if value, _, _ := h.Shared("k"); string(value) != strconv.Itoa(b.N) {
		b.Fatalf("of %d requests %s were counted", b.N, value)
	}
}
