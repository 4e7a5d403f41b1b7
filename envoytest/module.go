package envoytest

import (
	"context"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// maxMemoryPages is the most linear memory that Envoy gives a VM: 1 GiB in pages of 64 KiB.
const maxMemoryPages = 16384

// Module is a compiled filter. Compiling is the slow part, so tests share a Module between hosts.
type Module struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
}

// Compile compiles a proxy-wasm module. It fails if the module is not WebAssembly, does not export
// the mark of version 0.2.0 or 0.2.1 of the ABI, has no allocator, or imports a function that the
// host does not have.
func Compile(wasm []byte) (*Module, error) {
	ctx := context.Background()
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(maxMemoryPages)
	m := &Module{runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	if err := m.compile(ctx, wasm); err != nil {
		return nil, errors.Join(fmt.Errorf("envoytest: compile: %w", err), m.Close())
	}
	return m, nil
}

func (m *Module) compile(ctx context.Context, wasm []byte) (err error) {
	m.compiled, err = m.runtime.CompileModule(ctx, wasm)
	if err != nil {
		return err
	}
	exports := m.compiled.ExportedFunctions()
	_, abi020 := exports["proxy_abi_version_0_2_0"]
	_, abi021 := exports["proxy_abi_version_0_2_1"]
	if !abi020 && !abi021 {
		return errors.New("missing or unknown Proxy-Wasm ABI version: the module must export proxy_abi_version_0_2_0")
	}
	if exports["malloc"] == nil && exports["proxy_on_memory_allocate"] == nil {
		return errors.New("the module exports neither malloc nor proxy_on_memory_allocate")
	}
	if err := m.checkImports(abi021); err != nil {
		return err
	}
	for name, funcs := range hostModules() {
		if err := instantiateHostModule(ctx, m.runtime, name, funcs); err != nil {
			return err
		}
	}
	return nil
}

// checkImports names every import that the host lacks, so that a test does not meet them one at a
// time.
func (m *Module) checkImports(abi021 bool) error {
	var missing []error
	for _, f := range m.compiled.ImportedFunctions() {
		module, name, _ := f.Import()
		i, ok := hostFuncIndex[module][name]
		if !ok || hostFuncs[i].only021 && !abi021 {
			missing = append(missing, fmt.Errorf("missing import: %s.%s", module, name))
		}
	}
	return errors.Join(missing...)
}

// Close frees the compiled code. No host may use the module any more.
func (m *Module) Close() error { return m.runtime.Close(context.Background()) }

// New makes a process with this module as its plugin; nothing runs before Start.
func (m *Module) New(opt Options) *Host { return newHost(m, opt) }

// vmContext carries the VM of a call to the host functions, which all VMs of a module share.
type vmContext struct {
	context.Context
	vm *vm
}

// instantiateHostModule offers host functions to the modules of a runtime.
func instantiateHostModule(ctx context.Context, r wazero.Runtime, name string, funcs []int) error {
	builder := r.NewHostModuleBuilder(name)
	for _, i := range funcs {
		f := &hostFuncs[i]
		builder.NewFunctionBuilder().
			WithGoFunction(f.bind(i), valueTypes(f.params), valueTypes(f.results)).
			Export(f.name)
	}
	_, err := builder.Instantiate(ctx)
	return err
}

func valueTypes(letters string) []api.ValueType {
	types := make([]api.ValueType, len(letters))
	for i, c := range letters {
		types[i] = api.ValueTypeI32
		if c == 'I' {
			types[i] = api.ValueTypeI64
		}
	}
	return types
}
