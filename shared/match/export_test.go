package match

// Elements is how many elements the tables have, as Continue counts its work.
func (ix *Index) Elements() int { return ix.elements() }

// Hashed is how many bytes were hashed for the last request.
func Hashed(m *Matcher) int { return m.work }
