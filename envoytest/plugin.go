package envoytest

import (
	"errors"
	"slices"
)

// plugin is one configuration of the plugin. A listener update replaces it as a whole.
type plugin struct {
	module *Module
	config []byte
}

func (p *plugin) same(q *plugin) bool {
	return p.module == q.module && string(p.config) == string(q.config)
}

// handle is a plugin on a thread: a VM and a root context in it. It lives as long as a
// configuration in force or a stream holds it.
type handle struct {
	thread  *thread
	plugin  *plugin
	vm      *vm
	root    *wasmContext
	loaded  int64 // monotonic time of the last load, for the back-off of reloads
	streams int
	retired bool // replaced by another plugin
	drained bool // the old listener, if any, is gone
}

// UpdatePlugin pushes another plugin configuration, as a listener update does. The canary tries it
// first; if it refuses, UpdatePlugin returns an error and the old configuration stays in force.
// Otherwise each thread gets another root context in the VM it has, while the old one lives, and
// ticks, until Options.DrainTime is over and its last stream has ended.
func (h *Host) UpdatePlugin(config []byte) error {
	if h.plugin == nil {
		return errors.New("envoytest: UpdatePlugin needs a host that has started")
	}
	return h.load(h.plugin.module, config)
}

// Upgrade pushes another module, or the same code compiled again, with a plugin configuration. It
// is UpdatePlugin with new VMs; shared data outlives it. The caller keeps both modules open until
// Close.
func (h *Host) Upgrade(m *Module, config []byte) error { return h.load(m, config) }

func (h *Host) load(m *Module, config []byte) error {
	p := &plugin{module: m, config: slices.Clone(config)}
	since := h.logLength()
	if reason := h.try(p); reason != "" {
		h.addLog(Main, Critical, reason)
		return h.refusal(reason, since)
	}
	h.plugin = p
	for _, t := range h.threads() {
		t.mu.Lock()
		t.replace(p)
		t.mu.Unlock()
	}
	return nil
}

// try runs the plugin in the base VM and in a canary, both on the main thread. It returns why the
// plugin is refused, or "".
func (h *Host) try(p *plugin) string {
	h.main.mu.Lock()
	defer h.main.mu.Unlock()
	for _, number := range []int{Base, Canary} {
		v, err := h.newVM(p.module, h.main, number)
		if v != nil {
			defer v.close()
		}
		if err != nil {
			return "Failed to initialize Wasm code"
		}
		if number == Base {
			continue
		}
		root := v.newContext(p, nil, nil)
		if !root.start() {
			return "Failed to start base Wasm"
		}
		if !root.configure() {
			return "Failed to configure base Wasm plugin"
		}
	}
	return ""
}

// replace puts p in force on the thread.
func (t *thread) replace(p *plugin) {
	old := t.current
	t.current = t.find(p)
	if t.current == nil {
		t.current = t.load(p)
	}
	if t.current != nil {
		t.current.retired = false
	}
	if old != nil && old != t.current {
		old.retire()
	}
}

// find returns a handle of the same plugin that is still alive: Envoy takes it up again.
func (t *thread) find(p *plugin) *handle {
	for _, hd := range t.handles {
		if hd.plugin.same(p) && !hd.vm.failed && !hd.root.shutdown {
			return hd
		}
	}
	return nil
}

// load makes a root context for p, in a VM of the thread or in a new VM. It returns nil if that
// fails.
func (t *thread) load(p *plugin) *handle {
	var v *vm
	for _, hd := range t.handles {
		if hd.plugin.module == p.module && !hd.vm.failed {
			v = hd.vm
		}
	}
	if v == nil {
		var err error
		v, err = t.h.newVM(p.module, t, t.number)
		if err != nil {
			t.h.addLog(t.number, Critical, "Failed to initialize Wasm code: "+err.Error())
			if v != nil {
				v.close()
			}
			return nil
		}
	}
	root := v.newContext(p, nil, nil)
	reason := ""
	if !root.start() {
		reason = "Failed to start thread-local Wasm"
	} else if !root.configure() {
		reason = "Failed to configure thread-local Wasm plugin"
	}
	if reason != "" || v.failed {
		t.h.addLog(t.number, Critical, reason)
		root.deleted = true
		delete(v.contexts, root.id)
		t.closeIfUnused(v)
		return nil
	}
	hd := &handle{thread: t, plugin: p, vm: v, root: root, loaded: t.h.clock.mono.Load()}
	t.handles = append(t.handles, hd)
	return hd
}

// retire lets go of a handle that was replaced, at once or when its listener has drained.
func (hd *handle) retire() {
	hd.retired, hd.drained = true, false
	if hd.thread.h.opt.DrainTime == 0 || hd.vm.failed {
		hd.drained = true
		hd.release()
		return
	}
	hd.thread.h.clock.after(hd.thread.h.opt.DrainTime, func() {
		hd.thread.mu.Lock()
		defer hd.thread.mu.Unlock()
		hd.drained = true
		hd.release()
	})
}

// release ends a root context that nothing holds any more. A guest that is not done yet keeps it
// until proxy_done.
func (hd *handle) release() {
	if !hd.retired || !hd.drained || hd.streams > 0 || hd.root.deleted || hd.root.shutdown {
		return
	}
	if !hd.root.done() {
		hd.root.shutdown = true
		return
	}
	hd.end()
}

func (hd *handle) end() {
	hd.root.delete()
	t := hd.thread
	t.handles = slices.DeleteFunc(t.handles, func(x *handle) bool { return x == hd })
	t.closeIfUnused(hd.vm)
}

// closeIfUnused frees a VM with its last root context.
func (t *thread) closeIfUnused(v *vm) {
	for _, hd := range t.handles {
		if hd.vm == v {
			return
		}
	}
	v.close()
}

// finishShutdown handles proxy_done of a root context that was asked to end: it is deleted when the
// guest's call returns.
func (v *vm) finishShutdown(root *wasmContext) status {
	if !root.shutdown {
		return statusNotFound
	}
	for _, hd := range v.thread.handles {
		if hd.root == root {
			v.postpone(hd.end)
			return statusOK
		}
	}
	return statusNotFound
}

// handleForRequest returns the handle of a new request. After a trap and under FailReload it makes
// a new VM, unless the last load was less than a back-off ago. The result may be nil, or have a
// failed VM.
func (t *thread) handleForRequest() *handle {
	hd := t.current
	if hd == nil || !hd.vm.failed || t.h.opt.FailurePolicy != FailReload ||
		t.h.since(hd.loaded) < t.h.opt.ReloadBackoff {
		return hd
	}
	hd.loaded = t.h.clock.mono.Load()
	if fresh := t.load(hd.plugin); fresh != nil {
		t.current = fresh
		hd.retire()
		return fresh
	}
	return hd
}
