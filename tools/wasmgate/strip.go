package main

// keep lists the exports that a filter needs. The host enters the guest for every callback that is exported, whether it
// does anything or not, so those that only return "continue" are worth removing.
//
// malloc is kept on purpose. The host asks an export of that name for the memory of everything it returns, before it looks
// for proxy_on_memory_allocate. The filter's own malloc serves a static arena. It must never be TinyGo's, see rules.go.
var keep = map[string]bool{
	"memory":                      true,
	"_initialize":                 true,
	"malloc":                      true,
	"proxy_abi_version_0_2_0":     true,
	"proxy_on_memory_allocate":    true,
	"proxy_on_context_create":     true,
	"proxy_on_vm_start":           true,
	"proxy_on_configure":          true,
	"proxy_on_tick":               true,
	"proxy_on_request_headers":    true,
	"proxy_on_response_headers":   true,
	"proxy_on_http_call_response": true,
	"proxy_on_done":               true,
	"proxy_on_log":                true,
	"proxy_on_delete":             true,
}

// strip returns the module without the exports that are not in keep. What stays keeps its order, so equal modules give
// equal bytes, and a module that has nothing to strip comes back byte for byte if its numbers were encoded shortest.
func (m *module) strip() []byte {
	out := append([]byte(nil), header...)
	for _, s := range m.sections {
		body := s.body
		if s.id == sectionExport {
			body = encodeExports(m.exports)
		}
		out = append(out, s.id)
		out = appendUint32(out, uint32(len(body)))
		out = append(out, body...)
	}
	return out
}

func encodeExports(all []entity) []byte {
	var entries []byte
	var n uint32
	for _, e := range all {
		if !keep[e.name] {
			continue
		}
		n++
		entries = appendUint32(entries, uint32(len(e.name)))
		entries = append(entries, e.name...)
		entries = append(entries, e.kind)
		entries = appendUint32(entries, e.index)
	}
	return append(appendUint32(nil, n), entries...)
}

// appendUint32 appends v as the shortest unsigned LEB128.
func appendUint32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}
