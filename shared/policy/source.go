package policy

import "strings"

// Source is one place to find a value in a request.
type Source struct {
	Kind SourceKind
	// Name is the header (in lower case), cookie, query parameter or claim; nested claims are
	// separated by dots. It is empty for a kind without names.
	Name string
}

// SourceKind is the kind of place. Its number is part of the encoding of partition keys: never
// renumber.
type SourceKind uint8

// The places.
const (
	SourceHeader SourceKind = iota + 1
	// SourceJWT is a claim that Envoy's jwt_authn filter has verified and put into its metadata
	// under "payload".
	SourceJWT
	SourceCookie
	SourceQuery
	// SourceSPIFFE is the URI in the verified certificate of the caller's connection.
	SourceSPIFFE
	// SourceAssignment is the tier that an operator has assigned to the consumer.
	SourceAssignment
	// SourceClientIP is the client's address; the last source of consumers.
	SourceClientIP
	// SourceFound is the place where the consumer was found. Its name is that source and the tier
	// of the callers found there, like client_ip=anonymous.
	SourceFound
	// SourceMetadata is a value that another filter has left in Envoy's metadata, by name space,
	// slash and key.
	SourceMetadata
	// SourceCertSubject is the subject of the verified certificate of the caller's connection.
	SourceCertSubject
)

// SourceUse is a set of purposes of sources.
type SourceUse uint8

// The uses: to find the consumer, the tier, or a number like a quota or a cost.
const (
	OfConsumers SourceUse = 1 << iota
	OfTiers
	OfNumbers
)

// sourceRow describes a kind of place.
type sourceRow struct {
	name string
	// uses are the purposes that the source may have.
	uses SourceUse
	// part is the part of a partition key with the same values, 0 for none. Only such a kind can be
	// a key of the mapping that finds a consumer.
	part PartKind
	// property is the path of Envoy's property before the name, whose levels are separated by
	// separator. It is empty for kinds that Envoy is not asked for.
	property  string
	separator byte
	// hint replaces the name in messages; empty for a kind without names. bad says how a name must
	// be if isValid refuses it.
	hint, bad string
	isValid   func(name string) bool
}

// metadataPath is the prefix of a filter's name space in Envoy's metadata.
const metadataPath = "metadata\x00filter_metadata\x00"

// sources are the kinds of places, by number.
var sources = [...]sourceRow{
	SourceHeader: {name: "header", uses: OfConsumers | OfTiers | OfNumbers, part: PartHeader,
		hint: "NAME", bad: "must be a header name, not ", isValid: isToken},
	SourceJWT: {name: "jwt", uses: OfConsumers | OfTiers | OfNumbers, part: PartJWT,
		property: metadataPath + "envoy.filters.http.jwt_authn\x00payload\x00", separator: '.',
		hint: "CLAIM", bad: "must be a claim, nested ones like realm.role, not ", isValid: isClaim},
	SourceCookie: {name: "cookie", uses: OfConsumers, part: PartCookie,
		hint: "NAME", bad: "must be a cookie name, not ", isValid: isToken},
	SourceQuery: {name: "query", uses: OfConsumers, part: PartQuery,
		hint: "NAME", isValid: isText},
	SourceSPIFFE: {name: "spiffe", uses: OfConsumers, part: PartSPIFFE,
		property: "connection\x00uri_san_peer_certificate"},
	SourceAssignment: {name: "assignment", uses: OfTiers},
	SourceClientIP:   {name: "client_ip", uses: OfConsumers},
	SourceFound:      {name: "consumer_source", uses: OfTiers},
	SourceMetadata: {name: "metadata", uses: OfNumbers, property: metadataPath, separator: '/',
		hint: "NS/KEY", bad: "must be a name space and a key of Envoy's metadata like " +
			"envoy.filters.http.ext_authz/quota, not ", isValid: metadataName},
	SourceCertSubject: {name: "cert_subject", uses: OfConsumers, part: PartCertSubject,
		property: "connection\x00subject_peer_certificate"},
}

// SourceCount is the number of kinds, including 0, which is no kind.
const SourceCount = len(sources)

func isText(string) bool { return true }

func isClaim(name string) bool {
	return name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") &&
		strings.IndexByte(name, 0) < 0
}

// kindRow returns the row of a kind, and an empty row for an unknown number.
func (k SourceKind) kindRow() *sourceRow {
	if int(k) >= len(sources) {
		k = 0
	}
	return &sources[k]
}

// String returns the kind's name in the policy language.
func (k SourceKind) String() string { return k.kindRow().name }

// Is reports whether the kind is for a use. An unknown number is for none.
func (k SourceKind) Is(use SourceUse) bool { return k.kindRow().uses&use != 0 }

// AsksEnvoy reports whether Envoy is asked for the value, because no header has it.
func (k SourceKind) AsksEnvoy() bool { return k.kindRow().property != "" }

// Property returns the path of Envoy's property before the source's name, and the separator of the
// name's levels; empty for a kind that Envoy is not asked for.
func (k SourceKind) Property() (path string, separator byte) {
	row := k.kindRow()
	return row.property, row.separator
}

// IsNamed reports whether a source of the kind has a name, like the name of a header.
func (k SourceKind) IsNamed() bool { return k.kindRow().hint != "" }

// Source returns the source of a component that is one value of the request; false for other
// components.
func (k PartKind) Source() (SourceKind, bool) {
	for i := range sources {
		if sources[i].part == k && k != 0 {
			return SourceKind(i), true
		}
	}
	return 0, false
}

// ParseIdentity finds a kind that partition keys can also have, by its name in the policy language.
func ParseIdentity(name string) (SourceKind, bool) {
	for i := range sources {
		if sources[i].part != 0 && sources[i].name == name {
			return SourceKind(i), true
		}
	}
	return 0, false
}

// Written returns a source of the kind as policies write parts, with a hint in place of its name.
func (k SourceKind) Written() string { return withName(k.kindRow().name, k.kindRow().hint) }

// ParseSource reads the result of String.
func ParseSource(text string) (Source, bool) {
	kind, name, _ := strings.Cut(text, ":")
	for i := range sources {
		row := &sources[i]
		if row.name == "" || row.name != kind {
			continue
		}
		if row.hint == "" {
			return Source{Kind: SourceKind(i)}, text == kind
		}
		return Source{SourceKind(i), name}, name != "" && row.isValid(name)
	}
	return Source{}, false
}

// String returns the source in one word, like header:x-api-key.
func (s Source) String() string { return withName(s.Kind.String(), s.Name) }

// readSource reads one place to find a value: a mapping with one key.
func (r *reader) readSource(path string, n Node, into *[]Source) {
	var fields []field
	names := ""
	for i := range sources {
		kind := SourceKind(i)
		if sources[i].part == 0 {
			continue
		}
		if names != "" {
			names += ", "
		}
		names += kind.String()
		fields = append(fields, field{kind.String(), func(path string, n Node) {
			if name, ok := r.readSourceName(path, n, kind); ok {
				*into = append(*into, Source{kind, name})
			}
		}})
	}
	r.readMap(path, n, fields...)
	r.mustHold(path, n.Kind != Map || len(n.Keys) == 1, "must have exactly one of "+names)
}

// readSourceName reads the name in a source of the kind: true for a kind without names.
func (r *reader) readSourceName(path string, n Node, kind SourceKind) (string, bool) {
	row := kind.kindRow()
	switch {
	case !kind.IsNamed():
		ok := n.Kind == Bool && n.Text == "true"
		if !ok {
			r.wrongKind(path, n, "true")
		}
		return "", ok
	case kind == SourceHeader:
		return r.readHeaderName(path, n)
	}
	text, ok := r.readText(path, n)
	if ok && !row.isValid(text) {
		r.failAt(path, row.bad+shorten(text))
		return "", false
	}
	return text, ok
}
