package dialect

import (
	"unsafe"

	"github.com/weir-proxy/weir/shared/text"
)

// Families are the prefixes of the names of all headers of dialects. Only a limiter may send these
// headers, so the filter removes them from requests. If the upstream uses a dialect that the filter
// uses, all headers of its family are from one of the two, so no client sees the limit of one
// limiter beside the remaining count of the other limiter. The first family is for headers that no
// limiter sends.
var Families = [...]string{1: "ratelimit", 2: "x-ratelimit", 3: "x-rate-limit"}

// FamilyOf returns the index in Families of the family of a header; 0 if it has none. The name is
// in lower case. Servers with CGI rules read X_RateLimit as X-RateLimit.
func FamilyOf(header []byte) int {
	for i := len(Families) - 1; i > 0; i-- {
		if hasPrefix(header, Families[i]) {
			return i
		}
	}
	return 0
}

// FamilyOfName is FamilyOf for a text. It allocates nothing: TinyGo may for a conversion.
func FamilyOfName(header string) int {
	return FamilyOf(unsafe.Slice(unsafe.StringData(header), len(header)))
}

func hasPrefix(header []byte, family string) bool {
	if len(header) < len(family) {
		return false
	}
	for i := range len(family) {
		if c := header[i]; c != family[i] && (c != '_' || family[i] != '-') {
			return false
		}
	}
	return true
}

// LeftIn returns the remaining count in a header of another limiter, if it has one to return. The
// name is in lower case, and the header belongs to the family.
func LeftIn(family int, header, value []byte) (n int64, ok bool) {
	switch rest := header[len(Families[family]):]; {
	case len(rest) == 0: // The list of the standard.
		return LeastRemaining(value)
	case text.Is(rest, "-remaining"):
		return ParseInt(value)
	}
	return 0, false
}

// IsSign reports whether a header identifies another limiter with the same dialect.
func IsSign(header string) bool {
	rest := header[len(Families[FamilyOfName(header)]):]
	return rest == "" || rest == "-remaining" || rest == "-limit"
}
