package mesh

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// vector returns WebAssembly's form of a list: the number of its items, then the items. All lists
// here are short.
func vector(items ...string) string { return string(rune(len(items))) + strings.Join(items, "") }

// section returns a section of a module. A function's body has the same form without the id.
func section(id byte, content string) string { return string([]byte{id, byte(len(content))}) + content }

// crashing returns a plugin which Envoy loads, and which traps at each request's headers.
func crashing() []byte {
	const (
		i32         = "\x7f"
		end         = "\x0b"
		one         = "\x41\x01" // i32.const 1
		unreachable = "\x00"
	)
	signature := func(parameters int, results ...string) string {
		return "\x60" + vector(strings.Split(strings.Repeat(i32, parameters), "")...) + vector(results...)
	}
	types := []string{signature(0), signature(1, i32), signature(2), signature(2, i32), signature(3, i32)}
	var indices, exports, bodies []string
	for i, f := range []struct {
		name, code string
		signature  byte
	}{
		{"proxy_abi_version_0_2_0", "", 0},
		{"proxy_on_memory_allocate", one, 1},
		{"proxy_on_context_create", "", 2},
		{"proxy_on_vm_start", one, 3},
		{"proxy_on_configure", one, 3},
		{"proxy_on_request_headers", unreachable, 4},
	} {
		indices = append(indices, string([]byte{f.signature}))
		exports = append(exports, string([]byte{byte(len(f.name))})+f.name+string([]byte{0, byte(i)}))
		body := vector() + f.code + end
		bodies = append(bodies, string([]byte{byte(len(body))})+body)
	}
	exports = append(exports, "\x06memory\x02\x00")
	module := "\x00asm\x01\x00\x00\x00" + section(1, vector(types...)) + section(3, vector(indices...)) +
		section(5, vector("\x00\x01"))
	// Names make this section longer than one byte can say.
	content := vector(exports...)
	module += string([]byte{7, byte(len(content)&0x7f | 0x80), byte(len(content) >> 7)}) + content
	return []byte(module + section(10, vector(bodies...)))
}

// failStrategy decides the outcome of requests after a crash. The request that crashed is lost in
// any case.
func aModuleThatCrashes(t *testing.T, m *mesh) {
	onlyIn(t, stack.WasmHost, "failStrategy is Istio's for Wasm; test/native provokes faults of the native host")
	for strategy, want := range map[string]int{
		"FAIL_OPEN": http.StatusOK, "FAIL_CLOSE": http.StatusServiceUnavailable,
		"FAIL_RELOAD": http.StatusServiceUnavailable,
	} {
		t.Run(strategy, func(t *testing.T) {
			g := aGround(t, m, "crash-"+strings.ToLower(strings.ReplaceAll(strategy, "_", "-")))
			g.store(plugin{name: "crashing", pluginName: "crashing", failStrategy: strategy,
				url: "file://" + written(t, crashing())}.manifest(t))
			p := g.run(t, g.gateway(), g.port)
			p.crashes = true
			g.settle(p)
			// Each worker has a virtual machine of its own, which has to crash first.
			counts(t, 50, p.url("/"))
			if got := counts(t, 20, p.url("/")); got[want] != 20 {
				t.Errorf("after the crash: %v, want %d", got, want)
			}
		})
	}
}
