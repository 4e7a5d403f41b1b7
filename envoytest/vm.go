package envoytest

import (
	"context"
	"math/rand/v2"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// callback is one of the functions that a guest may export for the host to call.
type callback int

const (
	onVMStart callback = iota
	onConfigure
	onContextCreate
	onTick
	onQueueReady
	onRequestHeaders
	onRequestBody
	onRequestTrailers
	onResponseHeaders
	onResponseBody
	onResponseTrailers
	onHTTPCallResponse
	onLog
	onDone
	onDelete
	callbackCount
)

var callbackNames = [callbackCount]string{
	"proxy_on_vm_start", "proxy_on_configure", "proxy_on_context_create", "proxy_on_tick", "proxy_on_queue_ready",
	"proxy_on_request_headers", "proxy_on_request_body", "proxy_on_request_trailers",
	"proxy_on_response_headers", "proxy_on_response_body", "proxy_on_response_trailers",
	"proxy_on_http_call_response", "proxy_on_log", "proxy_on_done", "proxy_on_delete",
}

// vm is one instance of a module. It runs on one thread, whose lock guards all of it.
type vm struct {
	h      *Host
	thread *thread
	number int
	ctx    *vmContext
	mod    api.Module
	mem    api.Memory

	exports [callbackCount]api.Function // nil: the guest does not have it, and the host continues without
	malloc  api.Function
	stack   [8]uint64 // parameters and result of the callback that runs
	mstack  [1]uint64 // the same of malloc, which runs inside callbacks
	scratch []byte    // a string on its way to the guest

	phase   phase
	failed  bool // trapped: the guest is never entered again
	stop    bool // a local reply was sent in this callback: do not continue, whatever it returns
	actions []func()
	nested  int // the calls within each other that run actions

	contexts  map[uint32]*wasmContext
	nextID    uint32
	current   *wasmContext
	effective uint32 // 0: the current context

	metrics      map[uint32]*metric
	lastMetricID [metricKinds]uint32
	lastCallID   uint32
	rand         *rand.ChaCha8

	hostcalls                    []uint64
	entries                      [callbackCount]uint64
	allocations, allocationBytes uint64
}

// newVM instantiates a module and runs its _initialize, under the restrictions of that phase.
func (h *Host) newVM(m *Module, t *thread, number int) (*vm, error) {
	v := &vm{
		h: h, thread: t, number: number,
		contexts: map[uint32]*wasmContext{}, nextID: 1, metrics: map[uint32]*metric{},
		hostcalls: make([]uint64, len(hostFuncs)), rand: h.newRand(),
	}
	v.ctx = &vmContext{Context: context.Background(), vm: v}
	v.current = &wasmContext{vm: v}
	v.current.root = v.current
	v.contexts[0] = v.current
	v.phase = phaseInitialize
	mod, err := m.runtime.InstantiateModule(v.ctx, m.compiled,
		wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return nil, err
	}
	v.mod, v.mem = mod, mod.Memory()
	v.malloc = mod.ExportedFunction("malloc")
	if v.malloc == nil {
		v.malloc = mod.ExportedFunction("proxy_on_memory_allocate")
	}
	for i, name := range callbackNames {
		v.exports[i] = mod.ExportedFunction(name)
	}
	h.live(v)
	return v, v.initialize()
}

// initialize runs _initialize and then main, or, only if there is no _initialize, _start.
func (v *vm) initialize() error {
	names := []string{"_start"}
	if v.mod.ExportedFunction("_initialize") != nil {
		names = []string{"_initialize", "main"}
	}
	for _, name := range names {
		f := v.mod.ExportedFunction(name)
		if f == nil {
			continue
		}
		if _, err := f.Call(v.ctx, make([]uint64, len(f.Definition().ParamTypes()))...); err != nil {
			v.fail(name, err)
			return err
		}
	}
	v.phase = phaseRun
	return nil
}

// close frees the instance; the guest hears nothing of it.
func (v *vm) close() {
	v.failed = true
	v.h.bury(v)
	if err := v.mod.Close(v.ctx); err != nil {
		v.h.problem("closing VM %d: %v", v.number, err)
	}
}

// fail marks the VM as trapped.
func (v *vm) fail(function string, err error) {
	v.failed = true
	v.h.addLog(v.number, Error, "Function: "+function+" failed: "+err.Error())
}

// call enters the guest as context c. It returns 0 if the guest does not export cb, has trapped
// before, or traps now. The caller must call afterCall when it has used the result.
func (v *vm) call(cb callback, c *wasmContext, args ...uint64) uint64 {
	f := v.exports[cb]
	if f == nil || v.failed {
		return 0
	}
	v.entries[cb]++
	savedCurrent, savedEffective := v.current, v.effective
	v.current, v.effective = c, 0
	v.stack[0] = uint64(c.id)
	copy(v.stack[1:], args)
	err := f.CallWithStack(v.ctx, v.stack[:])
	v.current, v.effective = savedCurrent, savedEffective
	if err != nil {
		v.fail(callbackNames[cb], err)
		return 0
	}
	return v.stack[0]
}

// maxNested is how many answers and resumptions of streams may be nested. Envoy carries out each
// within the callback of the one before: 200 go well, and some hundred more exhaust its stack.
const maxNested = 100

// afterCall runs the actions that had to wait until the guest's call returned: local replies,
// resumptions, deletions. It also resets stop, which a local reply sets.
func (v *vm) afterCall() {
	v.stop = false
	v.nested++
	defer func() { v.nested-- }()
	if v.nested == maxNested+1 && len(v.actions) > 0 {
		v.h.problem("more than %d answers are nested: a callback decided too many streams for the stack of Envoy",
			maxNested)
	}
	for len(v.actions) > 0 {
		action := v.actions[0]
		v.actions = v.actions[1:]
		action()
	}
}

// postpone runs an action in the next afterCall.
func (v *vm) postpone(action func()) { v.actions = append(v.actions, action) }

// context returns the context that host calls act on: the effective context, or the calling context
// if there is none or it is gone.
func (v *vm) context() *wasmContext {
	if v.effective != 0 {
		if c := v.contexts[v.effective]; c != nil {
			return c
		}
	}
	return v.current
}

// alloc lets the guest allocate size bytes and returns their address, and a view of them that the
// next call into the guest makes invalid. The host never frees: the bytes are the guest's.
func (v *vm) alloc(size uint32) (ptr uint32, view []byte, ok bool) {
	if v.failed {
		return 0, nil, false
	}
	v.allocations++
	v.allocationBytes += uint64(size)
	savedCurrent, savedEffective := v.current, v.effective
	v.current, v.effective = v.contexts[0], 0
	v.phase = phaseAllocate
	v.mstack[0] = uint64(size)
	err := v.malloc.CallWithStack(v.ctx, v.mstack[:])
	v.phase = phaseRun
	v.current, v.effective = savedCurrent, savedEffective
	if err != nil {
		v.fail("malloc", err)
		return 0, nil, false
	}
	ptr = uint32(v.mstack[0])
	if ptr == 0 {
		return 0, nil, false
	}
	view, ok = v.mem.Read(ptr, size)
	return ptr, view, ok
}
