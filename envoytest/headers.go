package envoytest

import (
	"slices"
	"strings"
)

// The headers of which Envoy keeps one entry: it appends another value with a comma. All other
// headers, such as x-api-key and cookie, may have several entries. The lists are from Envoy 1.40.
// Trailers are never joined.
var (
	inlineRequestHeaders = set(
		":authority", ":path", ":method", ":scheme", "accept", "accept-encoding",
		"access-control-request-headers", "access-control-request-method", "authorization", "cache-control",
		"connection", "content-encoding", "content-length", "content-type", "expect", "grpc-accept-encoding",
		"grpc-timeout", "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since",
		"origin", "pragma", "referer", "te", "upgrade", "user-agent", "via", "x-client-trace-id",
		"x-envoy-attempt-count", "x-envoy-original-path", "x-forwarded-client-cert", "x-forwarded-for",
		"x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-request-id",
	)
	inlineResponseHeaders = set(
		":status", "access-control-allow-methods", "access-control-allow-origin",
		"access-control-expose-headers", "age", "cache-control", "connection", "content-encoding",
		"content-length", "content-type", "date", "etag", "expires", "grpc-message", "grpc-status",
		"last-modified", "location", "server", "vary", "via", "x-envoy-ratelimited",
		"x-envoy-upstream-service-time", "x-request-id",
	)
)

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, name := range names {
		m[name] = true
	}
	return m
}

// headerMap is one block of headers or trailers, in order.
type headerMap struct {
	pairs  [][2]string
	inline map[string]bool // names of which there is one entry
}

// newHeaderMap copies pairs as Envoy would hold them: names in lower case, pseudo-headers first,
// inline ones joined.
func newHeaderMap(inline map[string]bool, pairs [][2]string) *headerMap {
	m := &headerMap{pairs: make([][2]string, 0, len(pairs)+4), inline: inline}
	for _, p := range pairs {
		m.add(p[0], p[1])
	}
	return m
}

// add appends an entry, or, to an inline header that is there, a value; pseudo-headers stay in
// front.
func (m *headerMap) add(name, value string) {
	name = strings.ToLower(name)
	if m.inline[name] {
		for i := range m.pairs {
			if m.pairs[i][0] == name {
				m.pairs[i][1] += "," + value
				return
			}
		}
	}
	if !strings.HasPrefix(name, ":") {
		m.pairs = append(m.pairs, [2]string{name, value})
		return
	}
	end := slices.IndexFunc(m.pairs, func(p [2]string) bool { return !strings.HasPrefix(p[0], ":") })
	if end < 0 {
		end = len(m.pairs)
	}
	m.pairs = slices.Insert(m.pairs, end, [2]string{name, value})
}

// first returns the first value of a header. A guest sees no other value of a repeated header.
func (m *headerMap) first(name string) (string, bool) {
	for i := range m.pairs {
		if m.pairs[i][0] == name {
			return m.pairs[i][1], true
		}
	}
	return "", false
}

// joined returns all values of a header, joined by commas, as properties have them.
func (m *headerMap) joined(name string) (string, bool) {
	var values []string
	for _, p := range m.pairs {
		if p[0] == name {
			values = append(values, p[1])
		}
	}
	return strings.Join(values, ","), values != nil
}

func (m *headerMap) remove(name string) {
	name = strings.ToLower(name)
	m.pairs = slices.DeleteFunc(m.pairs, func(p [2]string) bool { return p[0] == name })
}

// replace removes every entry of the name and adds one at the end.
func (m *headerMap) replace(name, value string) {
	m.remove(name)
	m.add(name, value)
}

// byteSize returns the size of all names and values, without separators, as in the ABI.
func (m *headerMap) byteSize() int {
	n := 0
	for _, p := range m.pairs {
		n += len(p[0]) + len(p[1])
	}
	return n
}

func (m *headerMap) len() int {
	if m == nil {
		return 0
	}
	return len(m.pairs)
}

func (m *headerMap) clone() [][2]string {
	if m == nil {
		return nil
	}
	return slices.Clone(m.pairs)
}
