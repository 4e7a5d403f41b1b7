package envoytest

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"strings"
)

func (v *vm) abiGetProperty(a []uint64) status {
	path, ok := v.bytes(a[0], a[1])
	if !ok {
		return statusInvalidMemoryAccess
	}
	if len(path) == 0 {
		return statusSerializationFailure
	}
	value, ok := v.context().property(string(bytes.TrimSuffix(path, []byte{0})))
	if !ok {
		return statusNotFound
	}
	return v.give(value, a[2], a[3])
}

// abiSetProperty writes filter state. There is none outside a stream.
func (v *vm) abiSetProperty(a []uint64) status {
	path, ok1 := v.bytes(a[0], a[1])
	value, ok2 := v.bytes(a[2], a[3])
	if !ok1 || !ok2 {
		return statusInvalidMemoryAccess
	}
	s := v.context().stream
	if s == nil {
		return statusNotFound
	}
	if s.filterState == nil {
		s.filterState = map[string][]byte{}
	}
	s.filterState["wasm."+string(path)] = bytes.Clone(value)
	return statusOK
}

// property returns the value of a path: first from the test's properties for the stream, then from
// its properties for all streams, then from the host.
func (c *wasmContext) property(path string) ([]byte, bool) {
	if c.stream != nil {
		if value, ok := c.stream.properties[path]; ok {
			return value, true
		}
	}
	opt := &c.vm.h.opt
	if value, ok := opt.Properties[path]; ok {
		return value, true
	}
	switch path {
	case "plugin_name":
		return []byte(opt.PluginName), true
	case "plugin_root_id":
		return []byte(opt.RootID), true
	case "plugin_vm_id":
		return []byte(opt.VMID), true
	case "xds\x00node\x00id":
		return []byte(opt.NodeID), true
	}
	if c.stream == nil {
		return nil, false
	}
	return c.stream.property(path)
}

// property returns the part of a stream's properties that follow from the request and the response.
func (s *Stream) property(path string) ([]byte, bool) {
	switch path {
	case "source\x00address":
		return []byte(s.source), true
	case "source\x00port":
		_, port, err := net.SplitHostPort(s.source)
		n, _ := strconv.Atoi(port)
		return number(int64(n)), err == nil
	case "request\x00path":
		return s.requestHeader(":path")
	case "request\x00url_path":
		value, ok := s.requestHeader(":path")
		value, _, _ = bytes.Cut(value, []byte("?"))
		return value, ok
	case "request\x00host":
		return s.requestHeader(":authority")
	case "request\x00method":
		return s.requestHeader(":method")
	case "request\x00scheme":
		return s.requestHeader(":scheme")
	case "request\x00id":
		return s.requestHeader("x-request-id")
	case "response\x00code_details":
		if s.details == "" && s.response.headers != nil {
			return []byte("via_upstream"), true
		}
		return []byte(s.details), s.details != ""
	case "response\x00code":
		if s.response.headers == nil {
			return nil, false
		}
		status, _ := s.response.headers.first(":status")
		n, err := strconv.Atoi(status)
		return number(int64(n)), err == nil
	}
	if name, ok := strings.CutPrefix(path, "request\x00headers\x00"); ok {
		return s.requestHeader(name)
	}
	if key, ok := strings.CutPrefix(path, "filter_state\x00"); ok {
		value, ok := s.filterState[key]
		return value, ok
	}
	value, ok := s.filterState["wasm."+path]
	return value, ok
}

func (s *Stream) requestHeader(name string) ([]byte, bool) {
	value, ok := s.request.headers.joined(name)
	return []byte(value), ok
}

// number encodes an integer for a guest: 8 bytes, little-endian.
func number(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }
