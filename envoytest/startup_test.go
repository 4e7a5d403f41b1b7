package envoytest

import (
	"slices"
	"strings"
	"testing"
)

func TestInitializeIsRestricted(t *testing.T) {
	for _, c := range []struct {
		script  string
		refused string // the host function that traps, if one does
	}{
		{"log 2 hello", ""},
		{"print hello", ""},
		{"clock 0; clock 1", ""},
		{"random 8", ""},
		{"env INIT", ""},
		{"time", "env.proxy_get_current_time_nanoseconds"},
		{"shared-get k", "env.proxy_get_shared_data"},
		{"tick 100", "env.proxy_set_tick_period_milliseconds"},
		{"define 0 c", "env.proxy_define_metric"},
		{"property plugin_root_id", "env.proxy_get_property"},
		{"exit", "wasi_snapshot_preview1.proc_exit"},
	} {
		t.Run(c.script, func(t *testing.T) {
			h := prepare(t, Options{Env: map[string]string{"INIT": c.script}})
			err := h.Start()
			if c.refused == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "restricted_callback: "+c.refused) {
				t.Errorf("Start returned %v", err)
			}
		})
	}
}

func TestExitReturnsAfterStart(t *testing.T) {
	equal(t, do(start(t, Options{}), 0, "exit"), "Wasm VM failed wasi_unstable proc_exit", "returned")
}

func TestAllocationIsRestricted(t *testing.T) {
	for _, c := range []struct {
		call    string
		refused bool
	}{{"log", false}, {"clock", false}, {"time", true}, {"random", true}} {
		t.Run(c.call, func(t *testing.T) {
			h := start(t, Options{})
			h.SetShared("k", []byte("v"))
			s := h.Worker(0).Request(get("request", "in-alloc "+c.call+"; shared-get k; log 2 still here"))
			failed := strings.Contains(h.LogText(), "Function: malloc failed: restricted_callback")
			if failed != c.refused || (s.State() == Failed) != c.refused {
				t.Errorf("malloc failed: %v, the stream is %v", failed, s.State())
			}
			// The guest goes on in a VM that has failed, until its callback returns.
			if !strings.Contains(h.LogText(), "still here") {
				t.Error("the guest was stopped inside its callback")
			}
		})
	}
}

func TestAllocatorThatGivesNothing(t *testing.T) {
	h := start(t, Options{})
	h.SetShared("k", []byte("v"))
	equal(t, do(h, 0, "in-alloc null; shared-get k; shared-get k"), "ok", "invalid-memory-access", "ok v cas 1")
}

func TestMallocIsPreferred(t *testing.T) {
	lines := do(start(t, Options{}), 0, "allocs")
	if !strings.HasSuffix(lines[0], "proxy_on_memory_allocate 0") || strings.HasPrefix(lines[0], "malloc 0") {
		t.Errorf("the host allocated by %s", lines[0])
	}
}

// The canary comes first, then the main thread, then the workers; each root context is created,
// started and configured.
func TestStartOrder(t *testing.T) {
	h := start(t, Options{
		Workers:      2,
		VMConfig:     []byte("create: buffer 7 0 99\nstart: buffer 7 0 99; buffer 6 0 6"),
		PluginConfig: []byte("configure: buffer 7 0 9; buffer 6 0 6"),
	})
	want := []string{
		`create: buffer 7 0 99 = ok "configure: buffer 7 0 9; buffer 6 0 6"`,
		`start: buffer 7 0 99 = not-found`, `start: buffer 6 0 6 = ok "create"`,
		`configure: buffer 7 0 9 = ok "configure"`, `configure: buffer 6 0 6 = ok "create"`,
	}
	var vms []int
	lines := h.Logs()
	for i := 0; i+len(want) <= len(lines); i += len(want) {
		equal(t, said(h, i)[:len(want)], want...)
		vms = append(vms, lines[i].VM)
	}
	if !slices.Equal(vms, []int{Canary, Main, 0, 1}) {
		t.Errorf("started in the order %v", vms)
	}
}

func TestRefusedPlugin(t *testing.T) {
	for _, c := range []struct{ name, vm, plugin, want string }{
		{"configuration", "", "configure: log 4 no such policy; return 0", "Failed to configure base Wasm plugin"},
		{"start", "start: log 4 no such policy; return 0", "", "Failed to start base Wasm"},
		{"trap", "", "configure: log 4 no such policy; fail now", "Failed to configure base Wasm plugin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := prepare(t, Options{Workers: 2, PluginName: "weir", VMConfig: []byte(c.vm),
				PluginConfig: []byte(c.plugin)})
			err := h.Start()
			if err == nil {
				t.Fatal("started")
			}
			for _, want := range []string{"Unable to create Wasm plugin weir", c.want, "no such policy"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if s := h.Worker(0).Request(get()); s.State() != Failed || s.Reply().Status != 503 {
				t.Errorf("a request without a plugin is %v", s.State())
			}
		})
	}
}

// A canary's changes to shared data stay, even if it refuses the configuration. Its timers and
// calls end with it.
func TestCanaryLeavesSharedDataBehind(t *testing.T) {
	h := prepare(t, Options{
		PluginConfig: []byte("configure: shared-set k v 0; tick 100; call c 1000 :method=GET :path=/ :authority=a; " +
			"return 0"),
	})
	if h.Start() == nil {
		t.Fatal("started")
	}
	if value, _, _ := h.Shared("k"); string(value) != "v" {
		t.Errorf("shared data has %q", value)
	}
	if n := len(h.Calls()); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	h.Advance(5e9)
	if n := h.Stats().Entries["proxy_on_tick"]; n != 0 {
		t.Errorf("%d ticks of a dead canary", n)
	}
}

func TestStartIsOnce(t *testing.T) {
	h := start(t, Options{})
	if h.Start() == nil {
		t.Error("a second Start was accepted")
	}
	if err := prepare(t, Options{}).UpdatePlugin(nil); err == nil {
		t.Error("an update before Start was accepted")
	}
}
