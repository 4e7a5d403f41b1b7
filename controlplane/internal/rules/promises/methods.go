package promises

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// common are methods that a misspelt one may mean, and registered others that are near to them
// (RFC 9110, WebDAV, caches).
var (
	common = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}
	rare   = []string{
		"ACL", "BAN", "BIND", "COPY", "LINK", "LOCK", "MERGE", "MOVE", "PRI", "PURGE", "QUERY", "REBIND", "REPORT",
		"SEARCH", "UNBIND", "UNLINK", "UNLOCK", "UPDATE", "PROPFIND", "PROPPATCH",
	}
)

// methodNotes name methods of a match that are probably misspelt. Any word can be a method, so none
// is refused.
func methodNotes(m *policy.Match) (notes []string) {
	for _, method := range m.Methods {
		if slices.Contains(common, method) || slices.Contains(rare, method) {
			continue
		}
		for _, c := range common {
			if letters(method) == letters(c) || oneOff(method, c) {
				notes = append(notes, "matches the method "+method+", which is not a common one: did you mean "+c+"?")
				break
			}
		}
	}
	return notes
}

// letters are those of a word, in order: a word with two of them exchanged has the same.
func letters(word string) string {
	all := strings.Split(word, "")
	slices.Sort(all)
	return strings.Join(all, "")
}

// oneOff reports whether two words differ in one letter: another one, one more or one less.
func oneOff(a, b string) bool {
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
