package envoytest

import (
	"slices"
	"strings"
	"testing"
)

// miniature writes a WebAssembly module by hand: for modules that no compiler would make.
type miniature struct {
	imports []string            // "module.name", all of type () -> ()
	exports map[string]miniFunc // functions by export name
}

// miniFunc is a function: i32 parameters, at most one i32 result, and code without its final end.
type miniFunc struct {
	params, results int
	code            []byte
}

// Code for miniFunc.
const (
	opUnreachable = 0x00
	opCall        = 0x10
	opI32Const    = 0x41
)

func (m miniature) bytes() []byte {
	section := func(id byte, count int, content []byte) []byte {
		content = slices.Concat([]byte{byte(count)}, content)
		return slices.Concat([]byte{id}, leb(len(content)), content)
	}
	types := []byte{0x60, 0, 0}
	var imports, funcs, exports, code []byte
	for _, i := range m.imports {
		module, name, _ := strings.Cut(i, ".")
		imports = slices.Concat(imports, str(module), str(name), []byte{0, 0})
	}
	names := make([]string, 0, len(m.exports))
	for name := range m.exports {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		f := m.exports[name]
		types = slices.Concat(types, []byte{0x60, byte(f.params)}, slices.Repeat([]byte{0x7f}, f.params),
			[]byte{byte(f.results)}, slices.Repeat([]byte{0x7f}, f.results))
		funcs = append(funcs, byte(i+1))
		exports = slices.Concat(exports, str(name), []byte{0, byte(len(m.imports) + i)})
		body := slices.Concat([]byte{0}, f.code, []byte{0x0b})
		code = slices.Concat(code, leb(len(body)), body)
	}
	return slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, 1+len(names), types), section(2, len(m.imports), imports), section(3, len(names), funcs),
		section(5, 1, []byte{0, 1}), section(7, len(names), exports), section(10, len(names), code))
}

func leb(n int) []byte {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

func str(s string) []byte { return append(leb(len(s)), s...) }

// bare returns the smallest valid proxy-wasm module, with the exports of more.
func bare(more map[string]miniFunc) miniature {
	m := miniature{exports: map[string]miniFunc{
		"proxy_abi_version_0_2_0":  {},
		"proxy_on_memory_allocate": {params: 1, results: 1, code: []byte{opI32Const, 8}},
	}}
	for name, f := range more {
		m.exports[name] = f
	}
	return m
}

func TestCompileRefuses(t *testing.T) {
	noVersion, noAllocator, wrongImports := bare(nil), bare(nil), bare(nil)
	delete(noVersion.exports, "proxy_abi_version_0_2_0")
	delete(noAllocator.exports, "proxy_on_memory_allocate")
	wrongImports.imports = []string{"env.proxy_nonsense", "wasi_snapshot_preview1.sock_open", "env.proxy_get_log_level"}
	for _, c := range []struct {
		name string
		wasm []byte
		want []string
	}{
		{"no module", []byte("<html>"), []string{"invalid magic number"}},
		{"no ABI version", noVersion.bytes(), []string{"missing or unknown Proxy-Wasm ABI version"}},
		{"no allocator", noAllocator.bytes(), []string{"neither malloc nor proxy_on_memory_allocate"}},
		{"imports the host lacks, all of them at once", wrongImports.bytes(),
			[]string{"env.proxy_nonsense", "wasi_snapshot_preview1.sock_open", "env.proxy_get_log_level"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Compile(c.wasm)
			if err == nil {
				t.Fatal("compiled")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// A guest without callbacks lets everything pass, and nothing is entered.
func TestMissingCallbacksContinue(t *testing.T) {
	h, err := New(bare(nil).bytes(), Options{T: t})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	s := h.Worker(0).Request(Request{Headers: get().Headers, Body: []byte("b"), Trailers: [][2]string{{"t", "1"}}})
	if s.State() != Continued {
		t.Fatalf("the request is %v", s.State())
	}
	if r := s.RespondWith(Response{Body: []byte("c"), Trailers: [][2]string{{"t", "1"}}}); r == nil || r.Status != 200 {
		t.Errorf("the client got %+v", r)
	}
	if n := h.Stats().Entries; len(n) != 0 {
		t.Errorf("callbacks were entered: %v", n)
	}
}

// Without _initialize a module's _start runs, under the same restrictions: TinyGo's default build
// mode cannot start.
func TestStartFunctionMustNotExit(t *testing.T) {
	good := bare(map[string]miniFunc{"_start": {}})
	bad := bare(map[string]miniFunc{"_start": {code: []byte{opCall, 0}}})
	bad.imports = []string{"env.proxy_done"}
	for _, c := range []struct {
		name  string
		wasm  miniature
		start bool
	}{{"plain _start", good, true}, {"_start that calls the host", bad, false}} {
		t.Run(c.name, func(t *testing.T) {
			h, err := New(c.wasm.bytes(), Options{T: t})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			if err := h.Start(); (err == nil) != c.start {
				t.Errorf("Start: %v", err)
			}
		})
	}
}
