package series

import "slices"

// row identifies a series.
type row struct {
	by   By
	name string
}

// line has a row's values of each outcome; nil if the row has none.
type line [places][]uint32

// ring keeps the last slots of a kind. Its cost for each row and outcome is fixed.
type ring struct {
	kept int64
	// ofVersions is true for the ring of the byVersion rows, which has no other rows; other rings
	// lack them.
	ofVersions bool
	// last is the newest slot. known marks the slots that a replica has stored.
	last  int64
	known []bool
	rows  map[row]*line
	// of is the number of rows of each kind.
	of map[By]int
}

func newRing(kept int64) *ring {
	return &ring{kept: kept, known: make([]bool, kept), rows: map[row]*line{}, of: map[By]int{}}
}

// keepsSlot reports whether the ring keeps a slot.
func (r *ring) keepsSlot(slot int64) bool { return slot <= r.last && slot > r.last-r.kept }

// knowsSlot reports whether the ring keeps a slot and a replica has stored it.
func (r *ring) knowsSlot(slot int64) bool { return r.keepsSlot(slot) && r.known[slot%r.kept] }

// setSlot replaces the counts of a slot by t; nil means no counts.
func (r *ring) setSlot(slot int64, t *tally) {
	r.advanceTo(slot)
	if !r.keepsSlot(slot) {
		return
	}
	r.emptySlot(slot)
	if t != nil {
		r.writeCounts(slot, t)
	}
}

// raiseSlot raises the counts of a slot to at least the counts of t.
func (r *ring) raiseSlot(slot int64, t *tally) {
	r.advanceTo(slot)
	if r.keepsSlot(slot) {
		r.writeCounts(slot, t)
	}
}

// writeCounts raises the counts of a slot to at least the counts of t.
func (r *ring) writeCounts(slot int64, t *tally) {
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

// atLeast raises the counts of a row to at least n, if there is room for the row.
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

// advanceTo makes room for a new slot, and forgets rows without counts.
func (r *ring) advanceTo(slot int64) {
	if slot <= r.last {
		return
	}
	for n := max(r.last+1, slot-r.kept+1); n <= slot; n++ {
		r.emptySlot(n)
	}
	before := r.last
	r.last = slot
	if !r.ofVersions && before/sweepEvery == slot/sweepEvery {
		return
	}
	for of, l := range r.rows {
		if l.dropEmpty() {
			delete(r.rows, of)
			r.of[of.by]--
		}
	}
}

// sweepEvery is the number of slots after which rows without counts are forgotten.
const sweepEvery = 12

// dropEmpty forgets outcomes without counts, and reports whether the line has no counts left.
func (l *line) dropEmpty() (empty bool) {
	empty = true
	for i, values := range l {
		if !slices.ContainsFunc(values, func(n uint32) bool { return n > 0 }) {
			l[i] = nil
		}
		empty = empty && l[i] == nil
	}
	return empty
}

// emptySlot removes all counts of a slot.
func (r *ring) emptySlot(slot int64) {
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

// sumSpan returns the sum of an outcome over n slots, from a slot on, and the number of known
// slots. For a utilisation it returns the highest value.
func (r *ring) sumSpan(of row, outcome int, from, n int64) (total, known int64) {
	var values []uint32
	if l := r.rows[of]; l != nil {
		values = l[outcome]
	}
	for slot := from; slot < from+n; slot++ {
		if !r.knowsSlot(slot) {
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
