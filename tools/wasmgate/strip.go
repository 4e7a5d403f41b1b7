package main

import "strings"

// keep lists the exports that a filter needs. The host enters the guest for every exported
// callback, whether it does anything or not, so callbacks that only return "continue" are worth
// removing.
//
// malloc is kept on purpose. The host asks an export of that name for the memory of everything it
// returns, before it looks for proxy_on_memory_allocate. The filter's own malloc serves a static
// arena. It must never be TinyGo's, see rules.go.
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
	"proxy_on_delete":             true,
}

// own begins the name of a callback that takes the place of the SDK's, and is kept whichever it is:
// weir_on_X becomes proxy_on_X. A module cannot define a name twice, and a package that imports the
// SDK has all of its callbacks.
const own, theirs = "weir_on_", "proxy_on_"

// stripExports returns the module without the exports that are not in keep. The rest keeps its
// order, so equal modules give equal bytes. A module that has nothing to strip is returned byte for
// byte if its numbers were encoded shortest.
func (m *module) stripExports() []byte {
	out := append([]byte(nil), header...)
	for _, s := range m.sections {
		body := s.body
		if s.id == sectionExport {
			body = encodeExports(m.keptExports())
		}
		out = append(out, s.id)
		out = appendUint32(out, uint32(len(body)))
		out = append(out, body...)
	}
	return out
}

// keptExports returns the exports that stay, by the names that the host looks for.
func (m *module) keptExports() []entity {
	replaced := map[string]bool{}
	for _, e := range m.exports {
		if name, ok := strings.CutPrefix(e.name, own); ok {
			replaced[theirs+name] = true
		}
	}
	var out []entity
	for _, e := range m.exports {
		if replaced[e.name] {
			continue
		}
		name, ok := strings.CutPrefix(e.name, own)
		if ok {
			e.name = theirs + name
		}
		if ok || keep[e.name] {
			out = append(out, e)
		}
	}
	return out
}

func encodeExports(exports []entity) []byte {
	out := appendUint32(nil, uint32(len(exports)))
	for _, e := range exports {
		out = appendUint32(out, uint32(len(e.name)))
		out = append(out, e.name...)
		out = append(out, e.kind)
		out = appendUint32(out, e.index)
	}
	return out
}

// appendUint32 appends v as the shortest unsigned LEB128.
func appendUint32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}
