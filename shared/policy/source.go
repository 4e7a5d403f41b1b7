package policy

import "strings"

// Source is one place to find a value in a request.
type Source struct {
	Kind SourceKind
	// Name is the header (in lower case), cookie or query parameter, or the claim, nested claims by
	// dots; empty for a kind without names.
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
	// SourceFound is where the consumer was found. Its name is that source and the tier of the
	// callers found there, like client_ip=anonymous.
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

// sourceRow is a kind of place.
type sourceRow struct {
	name string
	// uses are the purposes that the source may have.
	uses SourceUse
	// part is the part of a partition key with the same values, 0 for none. A consumer is found by
	// a mapping with the kind as its key only where there is such a part.
	part PartKind
	// property is the path of Envoy's property, before the name, whose levels a separator parts;
	// empty for what Envoy is not asked for.
	property  string
	separator byte
	// hint stands for the name in messages; empty for a kind without names. bad says of a name what
	// it must be, unless isValid.
	hint, bad string
	isValid   func(name string) bool
}

// metadataPath is before the name space of a filter in Envoy's metadata.
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

// SourceCount is the number of kinds, with 0, which is none.
const SourceCount = len(sources)

func isText(string) bool { return true }

func isClaim(name string) bool {
	return name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") &&
		strings.IndexByte(name, 0) < 0
}

// row returns the row of a kind, and an empty row for an unknown number.
func (k SourceKind) row() *sourceRow {
	if int(k) >= len(sources) {
		k = 0
	}
	return &sources[k]
}

// String is the kind's name in the policy language.
func (k SourceKind) String() string { return k.row().name }

// Is reports whether the kind is for a use. A number that is no kind is for none.
func (k SourceKind) Is(use SourceUse) bool { return k.row().uses&use != 0 }

// AsksEnvoy reports whether Envoy is asked for the value, because no header has it.
func (k SourceKind) AsksEnvoy() bool { return k.row().property != "" }

// Property returns the path of Envoy's property before the source's name, and the separator of the
// name's levels; empty for a kind that Envoy is not asked for.
func (k SourceKind) Property() (path string, separator byte) {
	row := k.row()
	return row.property, row.separator
}

// IsNamed reports whether a source of the kind has a name, like that of a header.
func (k SourceKind) IsNamed() bool { return k.row().hint != "" }

// Source is where a component comes from that is one value of the request; false for the others.
func (k PartKind) Source() (SourceKind, bool) {
	for i := range sources {
		if sources[i].part == k && k != 0 {
			return SourceKind(i), true
		}
	}
	return 0, false
}

// ParseIdentity finds a kind that partition keys can have too by its name in the policy language.
func ParseIdentity(name string) (SourceKind, bool) {
	for i := range sources {
		if sources[i].part != 0 && sources[i].name == name {
			return SourceKind(i), true
		}
	}
	return 0, false
}

// Written returns a source of the kind as policies write parts, with a hint in place of its name.
func (k SourceKind) Written() string { return named(k.row().name, k.row().hint) }

// ParseSource reads what String has written.
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

// String is the source as it is written in one word, like header:x-api-key.
func (s Source) String() string { return named(s.Kind.String(), s.Name) }

// source reads one place to find a value: a mapping with one key.
func (r *reader) source(path string, n Node, into *[]Source) {
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
			if name, ok := r.sourceName(path, n, kind); ok {
				*into = append(*into, Source{kind, name})
			}
		}})
	}
	r.object(path, n, fields...)
	r.present(path, n.Kind != Map || len(n.Keys) == 1, "must have exactly one of "+names)
}

// sourceName reads the name that a source of the kind looks for: true for a kind without names.
func (r *reader) sourceName(path string, n Node, kind SourceKind) (string, bool) {
	row := kind.row()
	switch {
	case !kind.IsNamed():
		ok := n.Kind == Bool && n.Text == "true"
		if !ok {
			r.wrongKind(path, n, "true")
		}
		return "", ok
	case kind == SourceHeader:
		return r.headerName(path, n)
	}
	text, ok := r.text(path, n)
	if ok && !row.isValid(text) {
		r.problem(path, row.bad+shorten(text))
		return "", false
	}
	return text, ok
}
