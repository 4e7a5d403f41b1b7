//go:build tinygo

// The empty filter: a proxy-wasm guest with the six callbacks that a stream has and nothing in
// them, not even the SDK's work there. Any filter with these callbacks costs at least as much; the
// benchmarks count from there.
package main

import (
	_ "unsafe" // for the SDK's callback

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

type vmContext struct{ types.DefaultVMContext }

// NewPluginContext implements types.VMContext.
func (*vmContext) NewPluginContext(uint32) types.PluginContext { return &pluginContext{} }

type pluginContext struct{ types.DefaultPluginContext }

// Envoy runs a reactor's init functions and never main.
func init() { proxywasm.SetVMContext(&vmContext{}) }

func main() {}

// The build puts these into the place of the SDK's callbacks.

//go:linkname sdkContextCreate proxy_on_context_create
func sdkContextCreate(id, root uint32)

//export weir_on_context_create
func onContextCreate(id, root uint32) {
	if root == 0 {
		sdkContextCreate(id, root)
	}
}

//export weir_on_request_headers
func onRequestHeaders(_, _, _ uint32) uint32 { return 0 }

//export weir_on_response_headers
func onResponseHeaders(_, _, _ uint32) uint32 { return 0 }

//export weir_on_done
func onDone(uint32) uint32 { return 1 }

//export weir_on_log
func onLog(uint32) {}

//export weir_on_delete
func onDelete(uint32) {}
