package match

import (
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// Where Envoy keeps what its own filters have verified.
const (
	claimPath  = "metadata\x00filter_metadata\x00envoy.filters.http.jwt_authn\x00payload\x00"
	spiffePath = "connection\x00uri_san_peer_certificate"
)

// putSource writes what a source holds and reports whether it holds anything. Of a header, cookie or
// query parameter that is given more than once all values are written, with their number, in order.
// An empty value counts as absent: it identifies no caller.
func (ix *Index) putSource(s source, a *Attributes) bool {
	name := ix.Text(s.name)
	switch s.kind {
	case policy.SourceClientIP:
		return ix.putPart(a.ClientIP, len(a.ClientIP) > 0)
	case policy.SourceHeader:
		return ix.putValues(ix.headerValues(a.Headers, name, false)) && ix.headerValues(a.Headers, name, true) > 0
	case policy.SourceCookie:
		return ix.putValues(ix.cookies(a.Headers, name, false)) && ix.cookies(a.Headers, name, true) > 0
	case policy.SourceQuery:
		return ix.putValues(ix.parameters(a.Query, name, false)) && ix.parameters(a.Query, name, true) > 0
	}
	if a.Properties == nil {
		return false
	}
	ix.text = append(ix.text[:0], spiffePath...)
	if s.kind != policy.SourceSPIFFE {
		ix.text = ix.propertyPath(s.kind, name)
	}
	value := a.Properties.Property(ix.text)
	return ix.putPart(value, len(value) > 0)
}

// putValues opens a value or a list of values and reports whether there are any.
func (ix *Index) putValues(count int) bool {
	if count > 1 {
		ix.key = putUvarint(append(ix.key, 2), uint32(count))
	} else if count == 1 {
		ix.key = append(ix.key, 1)
	}
	return count > 0
}

// headerValues counts, and with write encodes, the values of a header.
func (ix *Index) headerValues(headers []Header, name []byte, write bool) (count int) {
	for i := range headers {
		if text.Equal(headers[i].Name, name) && len(headers[i].Value) > 0 {
			count++
			if write {
				ix.key = putText(ix.key, headers[i].Value)
			}
		}
	}
	return count
}

// cookies counts, and with write encodes, the values of a cookie.
func (ix *Index) cookies(headers []Header, name []byte, write bool) (count int) {
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
					ix.key = putText(ix.key, value)
				}
			}
		}
	}
	return count
}

// parameters counts, and with write encodes, the values of a query parameter. Names and values are compared and encoded as
// they decode, so that one value cannot be written in several ways.
func (ix *Index) parameters(query, name []byte, write bool) (count int) {
	for len(query) > 0 {
		var pair []byte
		pair, query = text.Cut(query, '&')
		key, value := text.Cut(pair, '=')
		ix.text = appendDecoded(ix.text[:0], key)
		if !text.Equal(ix.text, name) || len(value) == 0 {
			continue
		}
		count++
		if write {
			ix.text = appendDecoded(ix.text[:0], value)
			ix.key = putText(ix.key, ix.text)
		}
	}
	return count
}

// appendDecoded decodes a query's percent-encoding and plus signs; an escape that is none stays as it is.
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

// PropertyPath is the path by which Properties are asked for a claim or a SPIFFE id.
func PropertyPath(s policy.Source) string {
	if s.Kind == policy.SourceSPIFFE {
		return spiffePath
	}
	if s.Kind == policy.SourceMetadata {
		return metadataPath + strings.ReplaceAll(s.Name, "/", "\x00")
	}
	return claimPath + strings.ReplaceAll(s.Name, ".", "\x00")
}
