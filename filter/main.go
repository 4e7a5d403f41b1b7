//go:build tinygo

// The filter: a proxy-wasm module for Envoy, compiled by TinyGo. It only wires; see
// internal/envoy/plugin for the callbacks.
package main

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"

	"github.com/weir-proxy/weir/filter/internal/envoy/plugin"
)

// Envoy runs a reactor's init functions and never main.
func init() { proxywasm.SetVMContext(plugin.NewVM()) }

func main() {}
