package match

// Elements is how many elements the tables have, as Continue counts its work.
func (ix *Index) Elements() int { return ix.elements() }
