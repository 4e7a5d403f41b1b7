package series

import "slices"

// row is what a series is about.
type row struct {
	by   By
	name string
}

// line has a row's values of each outcome, nil for those of which it has none.
type line [places][]uint32

// ring keeps the last slots of a kind. Its cost is fixed for each row and outcome.
type ring struct {
	kept int64
	// ofVersions: it has the byVersion rows, and no others, which the other rings lack.
	ofVersions bool
	// last is the newest slot. known are the slots that some replica has put.
	last  int64
	known []bool
	rows  map[row]*line
	// of is how many rows there are of each kind.
	of map[By]int
}

func newRing(kept int64) *ring {
	return &ring{kept: kept, known: make([]bool, kept), rows: map[row]*line{}, of: map[By]int{}}
}

// holds reports whether a slot is among those that are kept.
func (r *ring) holds(slot int64) bool { return slot <= r.last && slot > r.last-r.kept }

// knows reports whether some replica has put a slot that is kept.
func (r *ring) knows(slot int64) bool { return r.holds(slot) && r.known[slot%r.kept] }

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
	if r.ofVersions {
		for name, c := range t.Versions {
			r.atLeast(row{byVersion, name}, at, c)
		}
		return
	}
	r.atLeast(row{ByAll, ""}, at, &t.All)
	for name, c := range t.Policies {
		r.atLeast(row{ByPolicy, name}, at, c)
	}
	for name, c := range t.Nodes {
		r.atLeast(row{ByNode, name}, at, c)
	}
}

// atLeast makes the counts of a row at least n, if there is room for the row.
func (r *ring) atLeast(of row, at int64, n *counts) {
	l := r.rows[of]
	if l == nil {
		most := map[By]int{ByAll: 1, ByPolicy: maxPolicies, ByNode: maxNodes,
			byVersion: mostVersionRows(of.name)}[of.by]
		if r.of[of.by] >= most || *n == (counts{}) {
			return
		}
		l = new(line)
		r.rows[of] = l
		r.of[of.by]++
	}
	for i := range n {
		if n[i] > 0 && l[i] == nil {
			l[i] = make([]uint32, r.kept)
		}
		if n[i] > 0 {
			l[i][at] = max(l[i][at], n[i])
		}
	}
}

// advance makes room for a slot that is newer than all, and forgets what has no counts.
func (r *ring) advance(slot int64) {
	if slot <= r.last {
		return
	}
	for n := max(r.last+1, slot-r.kept+1); n <= slot; n++ {
		r.empty(n)
	}
	before := r.last
	r.last = slot
	if !r.ofVersions && before/sweepEvery == slot/sweepEvery {
		return
	}
	for of, l := range r.rows {
		if l.shrink() {
			delete(r.rows, of)
			r.of[of.by]--
		}
	}
}

// sweepEvery is after how many slots what has no counts is forgotten.
const sweepEvery = 12

// shrink forgets outcomes without counts, and reports whether none has any.
func (l *line) shrink() (empty bool) {
	empty = true
	for i, values := range l {
		if !slices.ContainsFunc(values, func(n uint32) bool { return n > 0 }) {
			l[i] = nil
		}
		empty = empty && l[i] == nil
	}
	return empty
}

func (r *ring) empty(slot int64) {
	at := slot % r.kept
	r.known[at] = false
	for _, l := range r.rows {
		for _, values := range l {
			if values != nil {
				values[at] = 0
			}
		}
	}
}

// span is what an outcome comes to over n slots from one on, and how many of them are known.
func (r *ring) span(of row, outcome int, from, n int64) (total, known int64) {
	var values []uint32
	if l := r.rows[of]; l != nil {
		values = l[outcome]
	}
	for slot := from; slot < from+n; slot++ {
		if !r.knows(slot) {
			continue
		}
		known++
		if values == nil {
			continue
		}
		if value := int64(values[slot%r.kept]); outcome == utilisation {
			total = max(total, value)
		} else {
			total += value
		}
	}
	return total, known
}
