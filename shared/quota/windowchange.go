package quota

import "slices"

// keptParts is the number of parts in which a history's kept marks are joined, after they do not
// count any more: all marks of a part become one mark.
const keptParts = 32

// Convert brings h, counted by w, to now and to the figures of next. Admitted tokens stay admitted,
// each mark as late as it can have been. Tokens that next has no room for count all the same, and
// leave at their own time. Tokens that a shorter window does not reach are kept for as long as w
// counts them: they count again in a longer window.
func (w Windows) Convert(h *History, now Instant, next Windows) {
	used := h.Last
	w.Advance(h, now)
	w.Keep(h, w.Reach())
	old := h.Marks
	h.Marks = make([]Mark, 0, len(old)+1)
	for i := len(old) - 1; i >= 0; i-- {
		m := old[i]
		at := min(m.Start+Instant(w.Grain-1), max(m.Start, used+Instant(LongestLease)))
		switch {
		case m.Start <= used: // It was admitted before the history was last used.
			next.Add(h, min(at, used), m.Count)
		case m.Start <= h.Last:
			next.Add(h, min(at, h.Last), m.Count)
		default:
			w.convertAhead(h, m, at, next)
		}
	}
	next.Saturate(h)
	next.Advance(h, h.Last)
}

// Saturate bounds the counts and the number of marks of h after more was added than the quota. A
// mark is joined with the later mark, which counts longest.
func (w Windows) Saturate(h *History) {
	most := w.MostCounted()
	for len(h.Marks) > MaxMarks {
		h.Marks[1].Count += h.Marks[0].Count
		h.Marks = slices.Delete(h.Marks, 0, 1)
	}
	for i := range h.Marks {
		h.Marks[i].Count = min(h.Marks[i].Count, most)
	}
}

// Reach returns for how long after its start a mark counts.
func (w Windows) Reach() Span { return Span(w.Leaves(Mark{})) }

// Keep keeps the marks of h for at least the reach of another window that counts them.
func (w Windows) Keep(h *History, reach Span) {
	if n := len(h.Marks); n > 0 {
		h.Reach = max(h.Reach, reach)
		h.Until = max(h.Until, h.Marks[n-1].Start+Instant(reach))
	}
}

// keptUntil returns when a mark is dropped: when it does not count any more, and would not count in
// the window of an earlier limit.
func (w Windows) keptUntil(h *History, m Mark) Instant {
	leaves := w.Leaves(m)
	if h.Reach > 0 && h.Last < h.Until {
		leaves = max(leaves, m.Start+Instant(h.Reach))
	}
	return leaves
}

// thinMarks joins marks that are only kept, and frees room for two more marks.
func (w Windows) thinMarks(h *History) {
	if h.Last >= h.Until || h.Reach <= w.Reach() {
		h.Reach, h.Until = 0, 0
		return
	}
	part := Instant(max(h.Reach/keptParts, 1))
	marks := h.Marks[:0]
	for i, m := range h.Marks {
		if n := len(marks); n > 0 && (len(h.Marks)-i+n > MaxMarks-2 ||
			w.Leaves(m) <= h.Last && marks[n-1].Start/part == m.Start/part) {
			m.Count = min(m.Count+marks[n-1].Count, w.MostCounted())
			marks = marks[:n-1]
		}
		marks = append(marks, m)
	}
	h.Marks = marks
}

// Forgettable returns the instant from which h equals a history that has admitted nothing.
func (w Windows) Forgettable(h *History) Instant {
	if len(h.Marks) == 0 {
		return h.Last
	}
	last := h.Marks[len(h.Marks)-1]
	return max(h.Last, w.Leaves(last), min(last.Start+Instant(h.Reach), h.Until))
}
