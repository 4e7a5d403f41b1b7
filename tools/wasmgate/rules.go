package main

import "fmt"

// maxSize is the size budget of the filter in bytes. The optimising compiler of the host compiles
// the whole module when a proxy starts and at every new version, so size is start-up time.
const maxSize = 1 << 20

// required names the exports without which a proxy-wasm host cannot run the module.
var required = []struct{ name, why string }{
	{"proxy_abi_version_0_2_0", "the host cannot tell which interface the module speaks; build package main with the " +
		"proxy-wasm SDK in it"},
	{"_initialize", "package initialisation would never run; build with -buildmode=c-shared"},
}

// forbidden names the exports that make a module fail, or leak, in Envoy.
var forbidden = []struct{ name, why string }{
	{"_start", "it ends in proc_exit, which Envoy forbids; build with -buildmode=c-shared"},
	// TinyGo's libc-like allocator pins every buffer until free is called, and the host never calls
	// it: each host call that returns bytes would leak. The three names below come only from that
	// file. malloc alone may be exported, because the filter has its own.
	{"free", mallocFamily},
	{"calloc", mallocFamily},
	{"realloc", mallocFamily},
}

const mallocFamily = "TinyGo's malloc is in the module and leaks bytes of the host; build with -tags=custommalloc"

// allowed lists, by module, the imports that a filter may have. Envoy refuses a module that imports
// a function which Envoy does not offer. The lists are shorter than Envoy's, so that new ways out
// of the sandbox are a decision and not an accident.
var allowed = map[string]map[string]bool{
	"env": setOf(
		"proxy_log",
		"proxy_get_property", "proxy_set_property",
		"proxy_get_header_map_pairs", "proxy_set_header_map_pairs",
		"proxy_get_header_map_value", "proxy_add_header_map_value",
		"proxy_replace_header_map_value", "proxy_remove_header_map_value",
		"proxy_get_buffer_bytes",
		"proxy_get_shared_data", "proxy_set_shared_data",
		"proxy_define_metric", "proxy_increment_metric", "proxy_record_metric", "proxy_get_metric",
		"proxy_http_call",
		"proxy_send_local_response", "proxy_continue_stream", "proxy_close_stream",
		"proxy_set_effective_context", "proxy_set_tick_period_milliseconds", "proxy_done",
		"proxy_get_current_time_nanoseconds",
	),
	// Imports of TinyGo's runtime and libc: clock, hash seed, panic messages, the environment that
	// has the token; fd_close and fd_seek are in the exit path of libc's standard output.
	"wasi_snapshot_preview1": setOf(
		"clock_time_get", "random_get", "fd_write", "fd_close", "fd_seek", "proc_exit",
		"args_get", "args_sizes_get", "environ_get", "environ_sizes_get",
	),
}

func setOf(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// checkModule returns every reason to refuse the module; none means that it may be shipped.
func (m *module) checkModule() []string {
	problems := m.checkExports()
	for _, i := range m.imports {
		if kindNames[i.kind] != "function" || !allowed[i.module][i.name] {
			problems = append(problems, fmt.Sprintf(
				"imports the %v, which is not on the allow-list of tools/wasmgate; find the package that "+
					"brings it in", i))
		}
	}
	if m.size > maxSize {
		problems = append(problems, fmt.Sprintf("is %d bytes, over the budget of %d; look at the last import",
			m.size, maxSize))
	}
	return problems
}

// checkExports checks the rules that must also hold before strip runs: stripping would hide
// TinyGo's allocator, not remove it from use.
func (m *module) checkExports() []string {
	exported := make(map[string]bool, len(m.exports))
	for _, e := range m.exports {
		exported[e.name] = true
	}
	var problems []string
	for _, f := range forbidden {
		if exported[f.name] {
			problems = append(problems, fmt.Sprintf("exports %q: %s", f.name, f.why))
		}
	}
	for _, r := range required {
		if !exported[r.name] {
			problems = append(problems, fmt.Sprintf("does not export %q: %s", r.name, r.why))
		}
	}
	return problems
}
