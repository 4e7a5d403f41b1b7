package envoytest

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func update(t *testing.T, h *Host, config string) {
	t.Helper()
	if err := h.UpdatePlugin([]byte(config)); err != nil {
		t.Fatal(err)
	}
}

func entered(h *Host, before Stats, name string) uint64 { return h.Stats().Since(before).Entries[name] }

// While a stream holds the old root context both tick; shared data is there all the time, and so is
// the VM.
func TestOldAndNewRootContextOverlap(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 100; self root")})
	held := h.Worker(0).Request(get("request", "self s; shared-set k v 0; return 1"))
	before := h.Stats()
	update(t, h, "configure: tick 100; shared-get k; self root")
	if n := entered(h, before, "proxy_on_vm_start"); n != 3 {
		t.Errorf("proxy_on_vm_start ran %d times, want 3: canary, main thread, worker", n)
	}
	before = h.Stats()
	h.Advance(100 * time.Millisecond)
	if n := entered(h, before, "proxy_on_tick"); n != 3 {
		t.Errorf("%d ticks, want 3: main thread new, worker old and new", n)
	}
	if s := h.Worker(0).Request(get()); s.context.root == held.context.root || s.context.vm != held.context.vm {
		t.Error("a new request needs the new root context, in the same VM")
	}
	before = h.Stats()
	held.Cancel()
	if n := entered(h, before, "proxy_on_delete"); n != 2 {
		t.Errorf("%d contexts deleted, want the stream's and the old root's", n)
	}
	before = h.Stats()
	h.Advance(100 * time.Millisecond)
	if n := entered(h, before, "proxy_on_tick"); n != 2 {
		t.Errorf("%d ticks, want 2", n)
	}
	if value, _, _ := h.Shared("k"); string(value) != "v" {
		t.Errorf("shared data has %q after the update", value)
	}
}

func TestDrainTimeKeepsTheOldRootContext(t *testing.T) {
	h := start(t, Options{DrainTime: time.Second, PluginConfig: []byte("configure: tick 100")})
	update(t, h, "configure: tick 100; log 2 new")
	before := h.Stats()
	h.Advance(900 * time.Millisecond)
	if n := entered(h, before, "proxy_on_tick"); n != 36 {
		t.Errorf("%d ticks, want 36: 9 of two root contexts in two VMs", n)
	}
	h.Advance(100 * time.Millisecond)
	before = h.Stats()
	h.Advance(time.Second)
	if n := entered(h, before, "proxy_on_tick"); n != 20 {
		t.Errorf("%d ticks, want 20 after the drain", n)
	}
}

func TestRefusedUpdateLeavesTheOldPlugin(t *testing.T) {
	h := start(t, Options{Workers: 2, PluginConfig: []byte("configure: tick 100")})
	root := h.workers[0].current.root
	err := h.UpdatePlugin([]byte("configure: log 4 bad policy; return 0"))
	if err == nil || !strings.Contains(err.Error(), "bad policy") {
		t.Fatalf("UpdatePlugin returned %v", err)
	}
	if h.workers[0].current.root != root || h.Worker(0).Request(get()).State() != Continued {
		t.Error("the old plugin is gone")
	}
}

func TestUpdateWithTheSameConfigurationKeepsTheRootContext(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("a: 1")})
	root := h.workers[0].current.root
	update(t, h, "a: 1")
	if h.workers[0].current.root != root {
		t.Error("there is a new root context")
	}
	held := h.Worker(0).Request(get())
	update(t, h, "b: 1")
	update(t, h, "a: 1")
	if h.workers[0].current.root != root {
		t.Error("a root context that drains was not taken up again")
	}
	held.Cancel()
	if h.workers[0].current.root.deleted {
		t.Error("a root context in force was deleted with its last old stream")
	}
}

// A guest that is not done with an old root context keeps it, and its ticks, until it calls
// proxy_done.
func TestProxyDone(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 100\ndone: return 0\ntick: eval do\n" +
		"delete: log 2 deleted")})
	do(h, 0, "done")
	old := h.workers[0].current.root
	update(t, h, "configure: log 2 new")
	h.Advance(100 * time.Millisecond)
	if old.deleted {
		t.Fatal("deleted before it was done")
	}
	h.SetShared("do", []byte("done; done"))
	mark := h.logLength()
	h.Advance(100 * time.Millisecond)
	var lines []string
	for _, l := range h.Logs()[mark:] {
		if l.VM == 0 {
			lines = append(lines, l.Text)
		}
	}
	if !old.deleted || !slices.Contains(lines, "deleted") || !slices.Contains(lines, "tick: done = ok") {
		t.Errorf("deleted: %v; the guest said %q", old.deleted, lines)
	}
}

func TestTrapKillsOneVM(t *testing.T) {
	for _, where := range []string{"request", "response", "log", "done", "delete"} {
		t.Run(where, func(t *testing.T) {
			h := start(t, Options{Workers: 2})
			paused := h.Worker(0).Request(get("request", "return 1"))
			s := h.Worker(0).Request(get(where, "fail boom"))
			if where != "request" {
				s.Respond(200, nil)
			}
			want := map[string]int{"request": 503, "response": 503}[where]
			if want == 0 {
				want = 200
			}
			if r := s.Reply(); r == nil || r.Status != want {
				t.Errorf("the client got %+v", r)
			}
			if want == 503 && (s.State() != Failed || s.Reply().Details != "wasm_fail_stream") {
				t.Errorf("the stream is %v with %+v", s.State(), s.Reply())
			}
			if !strings.Contains(h.LogText(), "panic: boom") || !strings.Contains(h.LogText(), "failed: ") {
				t.Error("the trap is not in the log")
			}
			if h.Alive(0) || !h.Alive(1) || !h.Alive(Main) {
				t.Errorf("alive: %v %v %v", h.Alive(0), h.Alive(1), h.Alive(Main))
			}
			// A paused request of that VM hangs until its client goes; the guest hears nothing of
			// it.
			before := h.Stats()
			h.Advance(time.Minute)
			if paused.State() != Paused {
				t.Errorf("the paused stream is %v", paused.State())
			}
			paused.Cancel()
			if n := h.Stats().Since(before).Entries; n["proxy_on_log"] != 0 {
				t.Errorf("a dead VM was entered: %v", n)
			}
			if h.Worker(0).Request(get()).State() != Failed || h.Worker(1).Request(get()).State() != Continued {
				t.Error("new requests: worker 0 must fail, worker 1 not")
			}
		})
	}
}

func TestTrapInATickAndDuringACall(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("configure: tick 100\ntick: eval do")})
	do(h, 0, callUp)
	h.SetShared("do", []byte("fail boom"))
	h.Advance(100 * time.Millisecond)
	before := h.Stats()
	h.Advance(time.Hour)
	if n := h.Stats().Since(before).Entries; len(n) != 0 {
		t.Errorf("dead VMs were entered: %v", n)
	}
}

func TestFailurePolicies(t *testing.T) {
	trap := get("request", "fail boom")
	t.Run("closed", func(t *testing.T) {
		h := start(t, Options{})
		h.Worker(0).Request(trap)
		h.Advance(time.Hour)
		if s := h.Worker(0).Request(get()); s.State() != Failed {
			t.Errorf("the stream is %v", s.State())
		}
		update(t, h, "a: 1")
		if s := h.Worker(0).Request(get()); s.State() != Continued {
			t.Errorf("after another configuration the stream is %v", s.State())
		}
	})
	t.Run("open", func(t *testing.T) {
		h := start(t, Options{FailurePolicy: FailOpen})
		for range 2 {
			s := h.Worker(0).Request(trap)
			if s.State() != Continued {
				t.Fatalf("the stream is %v", s.State())
			}
			if r := s.Respond(200, nil); r == nil || r.Status != 200 {
				t.Errorf("the client got %+v", r)
			}
			h.Advance(time.Hour)
		}
		if h.Alive(0) {
			t.Error("the VM came back: failing open never reloads")
		}
	})
	t.Run("reload", func(t *testing.T) {
		h := start(t, Options{FailurePolicy: FailReload, PluginConfig: []byte("configure: tick 100")})
		states := func(r Request) State { return h.Worker(0).Request(r).State() }
		old := h.workers[0].current.vm
		do(h, 0, "shared-set k v 0")
		h.Advance(time.Second)
		if states(trap) != Failed || states(get()) != Continued {
			t.Error("the request after the trap must be served by a new VM")
		}
		if h.workers[0].current.vm == old {
			t.Error("the worker still has the old VM")
		}
		equal(t, do(h, 0, "shared-get k"), "ok v cas 1")
		h.Advance(999 * time.Millisecond)
		if states(trap) != Failed || states(get()) != Failed {
			t.Error("inside the back-off requests must fail")
		}
		h.Advance(time.Millisecond)
		if states(get()) != Continued {
			t.Error("after the back-off the VM must come back")
		}
		before := h.Stats()
		h.Advance(100 * time.Millisecond)
		if n := entered(h, before, "proxy_on_tick"); n != 2 {
			t.Errorf("%d ticks, want one of the new VM and one of the main thread", n)
		}
	})
	t.Run("the main thread is never reloaded", func(t *testing.T) {
		h := start(t, Options{FailurePolicy: FailReload, PluginConfig: []byte("configure: tick 100\ntick: eval do")})
		h.SetShared("do", []byte("fail boom"))
		h.Advance(100 * time.Millisecond)
		h.SetShared("do", nil)
		h.Advance(time.Hour)
		if h.Worker(0).Request(get()).State() != Continued || h.Alive(Main) {
			t.Error("the worker must be back, the main thread not")
		}
	})
}

// Another module gets new VMs and reads the shared data of the old module.
func TestUpgrade(t *testing.T) {
	h := start(t, Options{PluginConfig: []byte("a: 1")})
	do(h, 0, "shared-set k v 0")
	held := h.Worker(0).Request(get("request", "return 1"))
	next, err := Compile(bare(nil).bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := h.Upgrade(next, nil); err != nil {
		t.Fatal(err)
	}
	if s := h.Worker(0).Request(get("request", "reply 429 - - -1")); s.State() != Continued {
		t.Errorf("the old module took a new request: %v", s.State())
	}
	if held.context.vm.failed {
		t.Error("the old VM died before its last stream")
	}
	held.Cancel()
	if !held.context.vm.failed {
		t.Error("the old VM outlived its last stream")
	}
	if err := h.Upgrade(guest, []byte("a: 1")); err != nil {
		t.Fatal(err)
	}
	equal(t, do(h, 0, "shared-get k"), "ok v cas 1")
	h.Close()
}

func TestPluginThatFailsOnOneThreadOnly(t *testing.T) {
	h := start(t, Options{Workers: 1, PluginConfig: []byte("configure: shared-add starts; eval do")})
	if value, _, _ := h.Shared("starts"); string(value) != "3" {
		t.Fatalf("%s starts, want 3", value)
	}
	tripped := false
	h.opt.OnShared = func(vm int, op string, key []byte) {
		if vm == 0 && string(key) == "do" && !tripped {
			tripped = true
			h.SetShared("do", []byte("return 0"))
		}
	}
	update(t, h, "configure: shared-add starts; eval do\nb: 1")
	if s := h.Worker(0).Request(get()); s.State() != Failed {
		t.Errorf("the stream is %v", s.State())
	}
	if !strings.Contains(h.LogText(), "Failed to configure thread-local Wasm plugin") {
		t.Error("the failure is not in the log")
	}
}
