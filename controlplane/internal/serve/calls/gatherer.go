// Package calls reads the request from a call of one of Envoy's own limiters, looks up its
// consumer, and finds the policies that decide the call.
package calls

import (
	"net/url"
	"strings"

	"github.com/weir-proxy/weir/shared/classify"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// Entry is an entry of a descriptor.
type Entry struct{ Key, Value string }

// Keys of entries for the address, the method, the host and the path of the request.
const (
	keyRemote   = "remote_address"
	keyClientIP = "client_ip"
	keyMethod   = "method"
	keyHost     = "host"
	keyPath     = "path"
)

// Gatherer collects the request from the entries of a call. An entry whose key is spelled like a
// part of a partition is that part. The memory is used again. The zero value is ready for its first
// call.
type Gatherer struct {
	classifier classify.Classifier
	headers    []match.Header
	query      []byte
	remote     string
	properties properties
	seen       []Entry
}

// properties are the values of a call that the filter would read from Envoy's properties.
type properties []property

type property struct{ path, value string }

// Property implements match.Properties.
func (p properties) Property(path []byte) []byte {
	for i := range p {
		if p[i].path == string(path) {
			return []byte(p[i].value)
		}
	}
	return nil
}

// Begin forgets the call before.
func (g *Gatherer) Begin() {
	g.headers, g.query, g.remote = g.headers[:0], g.query[:0], ""
	g.properties, g.seen = g.properties[:0], g.seen[:0]
}

// Add reads an entry, and reports whether it is a part of the request. A repeated entry counts
// once: proxies repeat entries in several descriptors.
func (g *Gatherer) Add(e Entry) bool {
	kind, name, _ := strings.Cut(e.Key, ":")
	if e.Value == "" || !g.isPart(e.Key, kind) {
		return false
	}
	if g.hasEntry(e) {
		return true
	}
	g.seen = append(g.seen, e)
	switch kind {
	case keyRemote, keyClientIP:
		g.remote = e.Value
	case keyMethod:
		g.addHeader(":method", e.Value)
	case keyHost:
		g.addHeader(":authority", e.Value)
	case keyPath:
		g.addHeader(":path", e.Value)
	default:
		source, _ := policy.ParseIdentity(kind)
		g.putSource(policy.Source{Kind: source, Name: name}, e.Value)
	}
	return true
}

// putSource puts a value into the request at the place where the source looks for it.
func (g *Gatherer) putSource(s policy.Source, value string) {
	switch s.Kind {
	case policy.SourceHeader:
		g.addHeader(strings.ToLower(s.Name), value)
	case policy.SourceCookie:
		if !strings.ContainsRune(value, ';') {
			g.addHeader("cookie", s.Name+"="+value)
		}
	case policy.SourceQuery:
		if len(g.query) > 0 {
			g.query = append(g.query, '&')
		}
		g.query = append(append(append(g.query, url.QueryEscape(s.Name)...), '='), url.QueryEscape(value)...)
	default:
		g.properties = append(g.properties, property{match.PropertyPath(s), value})
	}
}

// isPart reports whether a key is spelled like a part of a partition.
func (g *Gatherer) isPart(key, kind string) bool {
	switch kind {
	case keyRemote, keyClientIP, keyMethod, keyHost, keyPath:
		return key == kind
	}
	source, ok := policy.ParseIdentity(kind)
	if !ok || !source.IsNamed() {
		return ok && key == kind
	}
	// A name that begins with a colon is a pseudo header, which has a key of its own.
	return len(key) > len(kind)+1 && key[len(kind)+1] != ':'
}

func (g *Gatherer) hasEntry(e Entry) bool {
	for _, one := range g.seen {
		if one == e || one.Key == e.Key && (one.Key == keyMethod || one.Key == keyHost || one.Key == keyPath) {
			return true
		}
	}
	return false
}

func (g *Gatherer) addHeader(name, value string) {
	g.headers = append(g.headers, match.Header{Name: []byte(name), Value: []byte(value)})
}

// Attributes returns the attributes of the call's request. They are valid until the next Begin.
func (g *Gatherer) Attributes(ix *match.Index) match.Attributes {
	rules := classify.RulesOf(ix)
	rules.TrustedHops, rules.NotAppended = 0, true // The proxy has counted the hops already.
	a := g.classifier.Of(g.headers, []byte(g.remote), rules)
	a.Query, a.Properties = g.query, g.properties
	return a
}
