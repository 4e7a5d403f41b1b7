//go:build tinygo

package plugin

import (
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/weir-proxy/weir/filter/internal/envoy/host"
)

// Version is the filter's own version.
const Version = "0.1.0"

// build is the build of the module, which wasm-build.sh sets.
var build string

// buildVersion returns the filter's version with its build, and with the host that runs it if that
// is not Envoy's Wasm runtime: 0.1.0+1a2b3c4d.native.
func buildVersion() string {
	version, separator := Version, "+"
	for _, part := range []string{build, string(host.Property("weir_host"))} {
		if part != "" {
			version, separator = version+separator+part, "."
		}
	}
	return version
}

// VM is one Wasm VM: Envoy makes a VM for each worker and for the main thread.
type VM struct {
	types.DefaultVMContext

	metrics metrics
}

// NewVM makes the VM context.
func NewVM() *VM { return &VM{} }

// NewPluginContext implements types.VMContext.
func (vm *VM) NewPluginContext(id uint32) types.PluginContext {
	host.Begin()
	p := &pluginContext{id: id, metrics: &vm.metrics}
	plugins = append(plugins, p)
	return p
}
