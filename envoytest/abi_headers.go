package envoytest

import "strings"

// readable returns the header map of a kind that context c may read now; nil if there is none.
func (c *wasmContext) readable(kind uint64) *headerMap {
	s := c.stream
	switch kind {
	case mapCallResponseHeaders, mapCallResponseTrailers:
		r := c.root.response
		if r == nil {
			return nil
		}
		if kind == mapCallResponseTrailers {
			return r.trailers
		}
		return r.headers
	case mapGrpcInitialMetadata, mapGrpcTrailingMetadata:
		return nil
	}
	if s == nil {
		return nil
	}
	if !s.logging {
		return s.visible[kind]
	}
	// proxy_on_log sees the headers of both sides, and no request trailers.
	switch kind {
	case mapRequestHeaders:
		return s.request.headers
	case mapResponseHeaders:
		return s.response.headers
	case mapResponseTrailers:
		return s.response.trailers
	}
	return nil
}

// writable returns the header map of a kind that context c may change now; nil if there is none.
func (c *wasmContext) writable(kind uint64) *headerMap {
	if c.stream == nil || kind > mapResponseTrailers {
		return nil
	}
	return c.stream.visible[kind]
}

// headerName returns the name at ptr in lower case.
func (v *vm) headerName(ptr, size uint64) ([]byte, bool) {
	name, ok := v.bytes(ptr, size)
	for _, b := range name {
		if 'A' <= b && b <= 'Z' {
			return []byte(strings.ToLower(string(name))), ok
		}
	}
	return name, ok
}

func (v *vm) abiGetHeader(a []uint64) status {
	if a[0] >= mapCount {
		return statusBadArgument
	}
	name, ok := v.headerName(a[1], a[2])
	if !ok {
		return statusInvalidMemoryAccess
	}
	c := v.context()
	m := c.readable(a[0])
	if m == nil {
		if c.stream != nil && c.stream.logging {
			return statusNotFound
		}
		return statusBadArgument
	}
	for i := range m.pairs {
		if m.pairs[i][0] == string(name) {
			return v.giveString(m.pairs[i][1], a[3], a[4])
		}
	}
	return statusNotFound
}

// abiGetHeaders gives all pairs. A map that is not available reads as an empty one here, unlike in
// the other calls.
func (v *vm) abiGetHeaders(a []uint64) status {
	if a[0] >= mapCount {
		return statusBadArgument
	}
	m := v.context().readable(a[0])
	if m.len() == 0 {
		return v.give(nil, a[1], a[2])
	}
	size := pairsSize(m.pairs)
	ptr, view, ok := v.alloc(uint32(size))
	if !ok {
		return statusInvalidMemoryAccess
	}
	encodePairs(view, m.pairs)
	if st := v.put32(a[1], ptr); st != statusOK {
		return st
	}
	return v.put32(a[2], uint32(size))
}

func (v *vm) abiGetHeaderSize(a []uint64) status {
	if a[0] >= mapCount {
		return statusBadArgument
	}
	m := v.context().writable(a[0])
	if m == nil {
		return statusBadArgument
	}
	return v.put32(a[1], uint32(m.byteSize()))
}

// changeHeader adds or replaces a header with change.
func (v *vm) changeHeader(a []uint64, change func(m *headerMap, name, value string)) status {
	if a[0] >= mapCount {
		return statusBadArgument
	}
	name, ok1 := v.bytes(a[1], a[2])
	value, ok2 := v.bytes(a[3], a[4])
	if !ok1 || !ok2 {
		return statusInvalidMemoryAccess
	}
	m := v.context().writable(a[0])
	if m == nil {
		return statusBadArgument
	}
	change(m, string(name), string(value))
	return statusOK
}

func (v *vm) abiAddHeader(a []uint64) status { return v.changeHeader(a, (*headerMap).add) }

func (v *vm) abiReplaceHeader(a []uint64) status { return v.changeHeader(a, (*headerMap).replace) }

func (v *vm) abiRemoveHeader(a []uint64) status {
	if a[0] >= mapCount {
		return statusBadArgument
	}
	name, ok := v.bytes(a[1], a[2])
	if !ok {
		return statusInvalidMemoryAccess
	}
	m := v.context().writable(a[0])
	if m == nil {
		return statusBadArgument
	}
	m.remove(string(name))
	return statusOK
}

func (v *vm) abiSetHeaders(a []uint64) status {
	if a[0] >= mapCount {
		return statusBadArgument
	}
	block, ok := v.bytes(a[1], a[2])
	if !ok {
		return statusInvalidMemoryAccess
	}
	m := v.context().writable(a[0])
	if m == nil {
		return statusBadArgument
	}
	*m = *newHeaderMap(m.inline, decodePairs(block))
	return statusOK
}
