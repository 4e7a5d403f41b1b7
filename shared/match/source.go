package match

import (
	"encoding/binary"
	"strings"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// Where Envoy keeps what its own filters know of a request.
const (
	// metadataPath is before the name space of a filter.
	metadataPath = "metadata\x00filter_metadata\x00"
	// claimPath is before a claim of a verified token.
	claimPath  = metadataPath + "envoy.filters.http.jwt_authn\x00payload\x00"
	spiffePath = "connection\x00uri_san_peer_certificate"
	// clusterPath is the name of the cluster that the route chooses.
	clusterPath = "xds\x00cluster_name"
	// DetailsPath is how the response came about, WholeResponse what it is for one that an upstream
	// has answered to its end.
	DetailsPath   = "response\x00code_details"
	WholeResponse = "via_upstream"
)

// PropertyPath is the path by which Properties are asked for a claim, metadata or a SPIFFE id.
func PropertyPath(s policy.Source) string {
	switch s.Kind {
	case policy.SourceSPIFFE:
		return spiffePath
	case policy.SourceMetadata:
		return metadataPath + strings.ReplaceAll(s.Name, "/", "\x00")
	}
	return claimPath + strings.ReplaceAll(s.Name, ".", "\x00")
}

// foundBy gives a cost that is found in metadata the path of its property for a name.
func foundBy(c *policy.Commit) *policy.Commit {
	if c.By == policy.CommitMetadata {
		c.Name = PropertyPath(policy.Source{Kind: policy.SourceMetadata, Name: c.Name})
	}
	return c
}

// encoder reads what requests hold and encodes it, in memory that it reuses. Each kind of value
// comes with its length, so that two different requests never encode alike however they are
// spelled.
type encoder struct {
	ix *Index
	// key is the encoding at hand.
	key []byte
	// text is a decoded name or value, or the path of a property.
	text []byte
}

// hash is the key of the encoding at hand.
func (e *encoder) hash() keyhash.Key { return hashed(e.ix.secret, e.key) }

// putPart encodes what a request holds for a part of a partition key, and reports whether it holds
// anything.
func (e *encoder) putPart(part part, a *Attributes) bool {
	switch part.kind {
	case policy.PartClientIP:
		return e.putValue(a.ClientIP, len(a.ClientIP) > 0)
	case policy.PartMethod:
		return e.putValue(a.Method, true)
	case policy.PartHost:
		return e.putValue(a.Host, len(a.Host) > 0)
	case policy.PartPath:
		return e.putValue(a.Path, true)
	case policy.PartConsumer:
		return e.putConsumer(a)
	case policy.PartUpstream:
		name := e.upstream(a)
		return e.putValue(name, len(name) > 0)
	}
	kind, _ := part.kind.Source()
	return e.putSource(source{kind: kind, name: part.name}, a)
}

// putConsumer encodes the first of the consumer's sources that holds anything, with its name: alice
// in a header and alice in a cookie are two.
func (e *encoder) putConsumer(a *Attributes) bool {
	for _, s := range e.ix.sources {
		start := len(e.key)
		e.key = putText(append(e.key, byte(s.kind)), e.ix.Text(s.name))
		if e.putSource(s, a) {
			return true
		}
		e.key = e.key[:start]
	}
	return false
}

// putSource encodes what a source holds, and reports whether it holds anything. A header, cookie or
// query parameter that is given more than once yields all its values in order, with their number.
// An empty value counts as absent: it identifies no caller.
func (e *encoder) putSource(s source, a *Attributes) bool {
	name := e.ix.Text(s.name)
	switch s.kind {
	case policy.SourceClientIP:
		return e.putValue(a.ClientIP, len(a.ClientIP) > 0)
	case policy.SourceHeader:
		return e.putCount(e.headerValues(a.Headers, name, false)) && e.headerValues(a.Headers, name, true) > 0
	case policy.SourceCookie:
		return e.putCount(e.cookies(a.Headers, name, false)) && e.cookies(a.Headers, name, true) > 0
	case policy.SourceQuery:
		return e.putCount(e.parameters(a.Query, name, false)) && e.parameters(a.Query, name, true) > 0
	}
	value := e.property(s.kind, name, a)
	return e.putValue(value, len(value) > 0)
}

func (e *encoder) putValue(value []byte, present bool) bool {
	if present {
		e.key = putText(append(e.key, oneValue), value)
	}
	return present
}

// putCount opens a value or a list of values, and reports whether there are any.
func (e *encoder) putCount(count int) bool {
	if count > 1 {
		e.key = binary.AppendUvarint(append(e.key, severalValues), uint64(count))
	} else if count == 1 {
		e.key = append(e.key, oneValue)
	}
	return count > 0
}

// headerValues counts, and with write encodes, the values of a header.
func (e *encoder) headerValues(headers []Header, name []byte, write bool) (count int) {
	for i := range headers {
		if text.Equal(headers[i].Name, name) && len(headers[i].Value) > 0 {
			count++
			if write {
				e.key = putText(e.key, headers[i].Value)
			}
		}
	}
	return count
}

// cookies counts, and with write encodes, the values of a cookie.
func (e *encoder) cookies(headers []Header, name []byte, write bool) (count int) {
	for i := range headers {
		if !headers[i].Is("cookie") {
			continue
		}
		for rest := headers[i].Value; len(rest) > 0; {
			var pair []byte
			pair, rest = text.Cut(rest, ';')
			key, value := text.Cut(text.Trim(pair), '=')
			if text.Equal(key, name) && len(value) > 0 {
				count++
				if write {
					e.key = putText(e.key, value)
				}
			}
		}
	}
	return count
}

// parameters counts, and with write encodes, the values of a query parameter. Names and values are
// compared and encoded as they decode, so that one value cannot be written in several ways.
func (e *encoder) parameters(query, name []byte, write bool) (count int) {
	for len(query) > 0 {
		var pair []byte
		pair, query = text.Cut(query, '&')
		key, value := text.Cut(pair, '=')
		e.text = appendDecoded(e.text[:0], key)
		if !text.Equal(e.text, name) || len(value) == 0 {
			continue
		}
		count++
		if write {
			e.text = appendDecoded(e.text[:0], value)
			e.key = putText(e.key, e.text)
		}
	}
	return count
}

// appendDecoded decodes a query's percent-encoding and plus signs. An escape that is none stays as
// it is.
func appendDecoded(dst, query []byte) []byte {
	for i := 0; i < len(query); i++ {
		c := query[i]
		if c == '+' {
			c = ' '
		} else if c == '%' && i+2 < len(query) {
			if decoded, ok := text.Unhex(query[i+1], query[i+2]); ok {
				c = decoded
				i += 2
			}
		}
		dst = append(dst, c)
	}
	return dst
}

// upstream asks Envoy for the cluster that the request goes to; nil if it goes to none.
func (e *encoder) upstream(a *Attributes) []byte {
	if a.Properties == nil {
		return nil
	}
	e.text = append(e.text[:0], clusterPath...)
	return a.Properties.Property(e.text)
}

// property asks Envoy for a claim, metadata or a SPIFFE id; nil if there is none.
func (e *encoder) property(kind policy.SourceKind, name []byte, a *Attributes) []byte {
	if a.Properties == nil {
		return nil
	}
	// The path is that of PropertyPath, made without garbage: dots join the parts of a claim's
	// name, slashes those of metadata's.
	prefix, separator := claimPath, byte('.')
	switch kind {
	case policy.SourceSPIFFE:
		prefix, name = spiffePath, nil
	case policy.SourceMetadata:
		prefix, separator = metadataPath, '/'
	}
	e.text = append(e.text[:0], prefix...)
	for _, c := range name {
		if c == separator {
			c = 0
		}
		e.text = append(e.text, c)
	}
	return a.Properties.Property(e.text)
}
