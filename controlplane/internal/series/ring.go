package series

// row is what a series is about.
type row struct {
	by   By
	name string
}

// ring keeps the last slots of a kind. Its cost is fixed for each row.
type ring struct {
	kept int64
	// last is the newest slot. known are the slots that some replica has put.
	last  int64
	known []bool
	rows  map[row][]counts
	// of is how many rows there are of each kind.
	of map[By]int
}

func newRing(kept int64) *ring {
	return &ring{kept: kept, known: make([]bool, kept), rows: map[row][]counts{}, of: map[By]int{}}
}

// holds reports whether a slot is among those that are kept.
func (r *ring) holds(slot int64) bool { return slot <= r.last && slot > r.last-r.kept }

// set makes t what was counted in a slot; nil is nothing.
func (r *ring) set(slot int64, t *tally) {
	r.advance(slot)
	if !r.holds(slot) {
		return
	}
	r.empty(slot)
	if t != nil {
		r.write(slot, t)
	}
}

// raise makes the counts of a slot at least those of t.
func (r *ring) raise(slot int64, t *tally) {
	r.advance(slot)
	if r.holds(slot) {
		r.write(slot, t)
	}
}

// write puts in the counts where they are higher than what is there.
func (r *ring) write(slot int64, t *tally) {
	at := slot % r.kept
	r.known[at] = true
	r.cell(row{ByAll, ""}, at).atLeast(&t.All)
	for name, c := range t.Policies {
		r.cell(row{ByPolicy, name}, at).atLeast(c)
	}
	for name, c := range t.Nodes {
		r.cell(row{ByNode, name}, at).atLeast(c)
	}
}

func (c *counts) atLeast(n *counts) {
	if c == nil { // There was no room for the row.
		return
	}
	for i := range c {
		c[i] = max(c[i], n[i])
	}
}

// cell is the place of a row's counts; nil if there are too many rows.
func (r *ring) cell(of row, at int64) *counts {
	values := r.rows[of]
	if values == nil {
		if most := map[By]int{ByAll: 1, ByPolicy: maxPolicies, ByNode: maxNodes}[of.by]; r.of[of.by] >= most {
			return nil
		}
		values = make([]counts, r.kept)
		r.rows[of] = values
		r.of[of.by]++
	}
	return &values[at]
}

// advance makes room for a slot that is newer than all, and forgets rows without counts.
func (r *ring) advance(slot int64) {
	if slot <= r.last {
		return
	}
	for n := max(r.last+1, slot-r.kept+1); n <= slot; n++ {
		r.empty(n)
	}
	before := r.last
	r.last = slot
	if before/sweepEvery == slot/sweepEvery {
		return
	}
	for of, values := range r.rows {
		if isZero(values) {
			delete(r.rows, of)
			r.of[of.by]--
		}
	}
}

// sweepEvery is after how many slots rows without counts are forgotten.
const sweepEvery = 12

func isZero(values []counts) bool {
	for i := range values {
		if values[i] != (counts{}) {
			return false
		}
	}
	return true
}

func (r *ring) empty(slot int64) {
	at := slot % r.kept
	r.known[at] = false
	for _, values := range r.rows {
		values[at] = counts{}
	}
}

// span adds up an outcome over n slots from one on; nil if none of them is known.
func (r *ring) span(values []counts, outcome int, from, n int64) *int64 {
	var total *int64
	for slot := from; slot < from+n; slot++ {
		at := slot % r.kept
		if !r.holds(slot) || !r.known[at] {
			continue
		}
		if total == nil {
			total = new(int64)
		}
		if values != nil {
			*total += int64(values[at][outcome])
		}
	}
	return total
}
