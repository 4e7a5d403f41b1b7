package match

// Elements is how many elements the tables have, as Continue counts its work.
func (ix *Index) Elements() int { return ix.countElements() }

// Hashed is how many bytes were hashed for the last request.
func Hashed(m *Matcher) int { return m.work }

// LookedAt is how many policies were found for the last request, by host, path and gates, each as
// often as it was found.
func LookedAt(m *Matcher) int { return len(m.search.found) }

// Gates is how many gates there are.
func Gates(ix *Index) int { return len(ix.trie.gates) - 1 }
