package promises

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// commonMethods are the methods that a misspelt word may mean. rareMethods are registered
// methods that look similar to them (RFC 9110, WebDAV, caches).
var (
	commonMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}
	rareMethods   = []string{
		"ACL", "BAN", "BIND", "COPY", "LINK", "LOCK", "MERGE", "MOVE", "PRI", "PURGE", "QUERY", "REBIND", "REPORT",
		"SEARCH", "UNBIND", "UNLINK", "UNLOCK", "UPDATE", "PROPFIND", "PROPPATCH",
	}
)

// methodNotes names the methods of a match that are probably misspelt. Any word can be a method, so
// the policy is accepted all the same.
func methodNotes(m *policy.Match) (notes []string) {
	for _, method := range m.Methods {
		if slices.Contains(commonMethods, method) || slices.Contains(rareMethods, method) {
			continue
		}
		for _, c := range commonMethods {
			if sortLetters(method) == sortLetters(c) || differByOne(method, c) {
				notes = append(notes,
					"matches the method "+method+", which is not a common method: did you mean "+c+"?")
				break
			}
		}
	}
	return notes
}

// sortLetters returns the letters of a word in alphabetical order. Two words that differ only in
// the order of their letters give the same result.
func sortLetters(word string) string {
	all := strings.Split(word, "")
	slices.Sort(all)
	return strings.Join(all, "")
}

// differByOne reports whether two words differ in exactly one letter: it is replaced, added or
// missing.
func differByOne(a, b string) bool {
	if len(a) < len(b) {
		a, b = b, a
	}
	same := 0
	for same < len(b) && a[same] == b[same] {
		same++
	}
	if same == len(a) {
		return false
	}
	rest := b[same:]
	if len(a) == len(b) {
		rest = b[same+1:]
	}
	return len(a)-len(b) <= 1 && a[same+1:] == rest
}
