package envoytest

import (
	"context"
	"fmt"

	"github.com/tetratelabs/wazero/api"
)

// phase limits the host functions that a guest may call.
type phase uint8

const (
	phaseRun        phase = iota // everything
	phaseInitialize              // while _initialize runs
	phaseAllocate                // while the guest allocates memory for the host
)

// hostFunc is one function that the host offers to guests.
type hostFunc struct {
	module, name    string
	params, results string // a letter per value: i for i32, I for i64
	allowed         phase  // the most restricted phase it may be called in, see allows
	only021         bool   // offered to modules of ABI 0.2.1 alone
	call            func(v *vm, args []uint64) uint32
}

// allows reports whether a guest may call f in a phase. A function that works during an allocation
// works during _initialize too.
func (f *hostFunc) allows(p phase) bool { return p <= f.allowed }

// hostFuncs is every host function; a VM counts its calls by index into it. hostFuncIndex has the
// index by module and name.
var (
	hostFuncs     []hostFunc
	hostFuncIndex = map[string]map[string]int{}
)

// The table cannot be a plain initialiser: the functions in it lead, through closing VMs and their
// counts, back to it.
func init() {
	hostFuncs = append(envFuncs(), wasiFuncs()...)
	for i, f := range hostFuncs {
		if hostFuncIndex[f.module] == nil {
			hostFuncIndex[f.module] = map[string]int{}
		}
		hostFuncIndex[f.module][f.name] = i
	}
}

// hostModules returns the indexes of the host functions of each module.
func hostModules() map[string][]int {
	modules := map[string][]int{}
	for i, f := range hostFuncs {
		modules[f.module] = append(modules[f.module], i)
	}
	return modules
}

// bind makes f callable by guests. A call that the phase forbids traps, as it does in Envoy.
func (f *hostFunc) bind(i int) api.GoFunc {
	return func(ctx context.Context, stack []uint64) {
		v := ctx.(*vmContext).vm
		if t := v.h.turns.Load(); t != nil {
			t.step(v.number, f.name)
		}
		v.hostcalls[i]++
		if v.phase != phaseRun && !f.allows(v.phase) {
			panic(fmt.Errorf("restricted_callback: %s.%s", f.module, f.name))
		}
		for i, c := range f.params {
			if c == 'i' {
				stack[i] = uint64(uint32(stack[i])) // the upper half is undefined
			}
		}
		result := f.call(v, stack)
		if f.results != "" {
			stack[0] = uint64(result)
		}
	}
}

// proxy describes a function of the ABI; all of them return a status.
func proxy(name, params string, call func(v *vm, a []uint64) status) hostFunc {
	return hostFunc{
		module: "env", name: "proxy_" + name, params: params, results: "i",
		call: func(v *vm, a []uint64) uint32 { return uint32(call(v, a)) },
	}
}

// envFuncs lists the functions of the ABI.
func envFuncs() []hostFunc {
	funcs := []hostFunc{
		proxy("log", "iii", (*vm).abiLog),
		proxy("get_log_level", "i", (*vm).abiGetLogLevel),
		proxy("get_current_time_nanoseconds", "i", (*vm).abiGetCurrentTime),
		proxy("set_tick_period_milliseconds", "i", (*vm).abiSetTickPeriod),
		proxy("get_property", "iiii", (*vm).abiGetProperty),
		proxy("set_property", "iiii", (*vm).abiSetProperty),
		proxy("get_shared_data", "iiiii", (*vm).abiGetSharedData),
		proxy("set_shared_data", "iiiii", (*vm).abiSetSharedData),
		proxy("register_shared_queue", "iii", (*vm).abiRegisterQueue),
		proxy("resolve_shared_queue", "iiiii", (*vm).abiResolveQueue),
		proxy("enqueue_shared_queue", "iii", (*vm).abiEnqueue),
		proxy("dequeue_shared_queue", "iii", (*vm).abiDequeue),
		proxy("get_header_map_value", "iiiii", (*vm).abiGetHeader),
		proxy("get_header_map_pairs", "iii", (*vm).abiGetHeaders),
		proxy("get_header_map_size", "ii", (*vm).abiGetHeaderSize),
		proxy("add_header_map_value", "iiiii", (*vm).abiAddHeader),
		proxy("replace_header_map_value", "iiiii", (*vm).abiReplaceHeader),
		proxy("remove_header_map_value", "iii", (*vm).abiRemoveHeader),
		proxy("set_header_map_pairs", "iii", (*vm).abiSetHeaders),
		proxy("get_buffer_bytes", "iiiii", (*vm).abiGetBuffer),
		proxy("get_buffer_status", "iii", (*vm).abiGetBufferStatus),
		proxy("set_buffer_bytes", "iiiii", (*vm).abiSetBuffer),
		proxy("http_call", "iiiiiiiiii", (*vm).abiHTTPCall),
		proxy("define_metric", "iiii", (*vm).abiDefineMetric),
		proxy("increment_metric", "iI", (*vm).abiIncrementMetric),
		proxy("record_metric", "iI", (*vm).abiRecordMetric),
		proxy("get_metric", "ii", (*vm).abiGetMetric),
		proxy("send_local_response", "iiiiiiii", (*vm).abiSendLocalResponse),
		proxy("continue_stream", "i", (*vm).abiContinueStream),
		proxy("close_stream", "i", (*vm).abiCloseStream),
		proxy("set_effective_context", "i", (*vm).abiSetEffectiveContext),
		proxy("done", "", (*vm).abiDone),
		proxy("get_status", "iii", (*vm).abiGetStatus),
		proxy("call_foreign_function", "iiiiii", func(*vm, []uint64) status { return statusNotFound }),
	}
	for name, params := range map[string]string{
		"grpc_call": "iiiiiiiiiiii", "grpc_stream": "iiiiiiiii", "grpc_cancel": "i", "grpc_close": "i",
		"grpc_send": "iiii",
	} {
		funcs = append(funcs, proxy(name, params, (*vm).abiGRPC))
	}
	for i := range funcs {
		switch funcs[i].name {
		case "proxy_log":
			funcs[i].allowed = phaseAllocate
		case "proxy_get_log_level":
			funcs[i].only021 = true
		}
	}
	return append(funcs, hostFunc{
		module: "env", name: "emscripten_notify_memory_growth", params: "i", allowed: phaseInitialize,
		call: func(*vm, []uint64) uint32 { return 0 },
	})
}
