package envoytest

import (
	"slices"
	"strings"
)

// inlineHeaders are names of which Envoy keeps one entry: a second value is appended to the first with a comma.
var inlineHeaders = map[string]bool{
	"x-forwarded-for": true, "x-forwarded-proto": true, "x-forwarded-host": true, "x-forwarded-port": true,
	"x-forwarded-client-cert": true, "x-request-id": true, "x-envoy-original-path": true,
	"user-agent": true, "content-type": true, "via": true, "te": true, "expect": true, "upgrade": true,
	"connection": true, "keep-alive": true, "grpc-timeout": true, "grpc-status": true, "grpc-message": true,
	"server": true, "date": true, "location": true,
}

// headerMap is one block of headers or trailers, in order.
type headerMap struct {
	pairs [][2]string
}

// newHeaderMap copies pairs as Envoy would hold them: names in lower case, pseudo-headers first, inline ones joined.
func newHeaderMap(pairs [][2]string) *headerMap {
	m := &headerMap{pairs: make([][2]string, 0, len(pairs)+4)}
	for _, p := range pairs {
		m.add(p[0], p[1])
	}
	return m
}

// add appends an entry, or, to an inline header that is there, a value; pseudo-headers stay in front.
func (m *headerMap) add(name, value string) {
	name = strings.ToLower(name)
	if inlineHeaders[name] {
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

// first returns the first value of a header: all a guest sees of a repeated one.
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

// byteSize is the size that the ABI speaks of: of names and values alone.
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
