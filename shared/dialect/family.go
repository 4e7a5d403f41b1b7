package dialect

import (
	"unsafe"

	"github.com/weir-proxy/weir/shared/text"
)

// Families are how the names of all headers of dialects begin. Only a limiter may say these, so the
// filter removes them from requests. Where the upstream speaks a dialect that the filter speaks,
// all headers of its family come from one of the two, so that no client sees the limit of one
// limiter beside the remaining of another. The first one is of headers that no limiter says.
var Families = [...]string{1: "ratelimit", 2: "x-ratelimit", 3: "x-rate-limit"}

// FamilyOf is the index in Families of the family of a header; 0 if it has none. The name is in
// lower case. Servers by the rules of CGI take X_RateLimit for X-RateLimit.
func FamilyOf(header []byte) int {
	for i := len(Families) - 1; i > 0; i-- {
		if begins(header, Families[i]) {
			return i
		}
	}
	return 0
}

// FamilyOfName is FamilyOf for a text. It allocates nothing: TinyGo may for a conversion.
func FamilyOfName(header string) int {
	return FamilyOf(unsafe.Slice(unsafe.StringData(header), len(header)))
}

func begins(header []byte, family string) bool {
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

// LeftIn is what a header of another limiter says is left, if it says that. The name is in lower
// case, and the header of the family.
func LeftIn(family int, header, value []byte) (n int64, ok bool) {
	switch rest := header[len(Families[family]):]; {
	case len(rest) == 0: // The list of the standard.
		return LeastRemaining(value)
	case text.Is(rest, "-remaining"):
		return ParseInt(value)
	}
	return 0, false
}

// IsSign reports whether a header of a dialect is one by which another limiter that speaks the same
// dialect is known.
func IsSign(header string) bool {
	rest := header[len(Families[FamilyOfName(header)]):]
	return rest == "" || rest == "-remaining" || rest == "-limit"
}
