//go:build tinygo

// The empty filter: a proxy-wasm guest with the callbacks of Weir's filter and nothing in them. What it costs is what any
// filter costs that is built this way; the benchmarks count from there.
package main

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

type vmContext struct{ types.DefaultVMContext }

// NewPluginContext implements types.VMContext.
func (*vmContext) NewPluginContext(uint32) types.PluginContext { return &pluginContext{} }

type pluginContext struct{ types.DefaultPluginContext }

// NewHttpContext implements types.PluginContext.
func (*pluginContext) NewHttpContext(uint32) types.HttpContext { return &httpContext{} }

type httpContext struct{ types.DefaultHttpContext }

// Envoy runs a reactor's init functions and never main.
func init() { proxywasm.SetVMContext(&vmContext{}) }

func main() {}
