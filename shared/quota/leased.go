package quota

import "math"

// LongestLease is the longest time for which tokens are lent.
const LongestLease = 30 * Second

// Room returns how many tokens are available at the history's time for use until an instant.
func (w Windows) Room(h *History, until Instant) int64 {
	room := w.tokensLeft(h, h.Last)
	if w.Algorithm == FixedWindow {
		room = min(room, w.tokensLeft(h, until))
	}
	return max(0, room)
}

// Lend counts n tokens that may be used from the history's time until an instant less than a fixed
// window away. They count at their latest possible use, and in a fixed window in both windows that
// they may be used in. The counter counts them at once, because its estimate weighs times of
// requests: tokens that it did not see now it would lend twice.
func (w Windows) Lend(h *History, until Instant, n int64) {
	switch {
	case w.Algorithm == SlidingWindowCounter:
		until = h.Last
	case w.Algorithm == FixedWindow && w.startOf(until) != w.startOf(h.Last):
		w.Add(h, h.Last, n)
	}
	w.Add(h, until, n)
}

// TakeBack takes back up to n tokens that were lent until an instant and that no request uses or
// has used. It returns how many: none when they count no more. The history is then as if they had
// not been lent. In a fixed window they leave both windows that they counted in. If their mark has
// merged with a later mark, that mark shrinks. Tokens that end later than the instant may be taken
// back by it, too: no count becomes less than the tokens that were or can still be used.
func (w Windows) TakeBack(h *History, until Instant, n int64) (taken int64) {
	start, current := w.startOf(until), w.startOf(h.Last)
	if !w.Algorithm.Lends() || w.Leaves(Mark{Start: start}) <= h.Last {
		return 0
	}
	if w.Algorithm == FixedWindow {
		taken = min(n, h.countAt(start), h.countAt(current))
		h.shrinkMarks(start, start, taken)
		if start != current {
			h.shrinkMarks(current, current, taken)
		}
		return taken
	}
	return h.shrinkMarks(start, math.MaxInt64, n)
}

// CountNow counts up to n used tokens, which were lent until an instant, at the history's time
// instead of that instant. It returns the number of tokens that it moved. In a fixed window they no
// longer count in the next window.
func (w Windows) CountNow(h *History, until Instant, n int64) (moved int64) {
	start, current := w.startOf(until), w.startOf(h.Last)
	if !w.Algorithm.Lends() || start <= current {
		return 0
	}
	if w.Algorithm == FixedWindow {
		return h.shrinkMarks(start, start, n)
	}
	if moved = h.shrinkMarks(start, math.MaxInt64, n); moved > 0 {
		w.Add(h, h.Last, moved)
	}
	return moved
}

// countAt returns the count of the mark that begins at start.
func (h *History) countAt(start Instant) int64 {
	for _, m := range h.Marks {
		if m.Start == start {
			return m.Count
		}
	}
	return 0
}

// shrinkMarks takes up to n tokens from the marks that begin from first to last, the earliest
// first, and returns how many it took.
func (h *History) shrinkMarks(first, last Instant, n int64) (taken int64) {
	kept := h.Marks[:0]
	for _, m := range h.Marks {
		if m.Start >= first && m.Start <= last {
			part := min(m.Count, n-taken)
			m.Count -= part
			taken += part
		}
		if m.Count > 0 {
			kept = append(kept, m)
		}
	}
	h.Marks = kept
	return taken
}

// FullAfter returns the wait from now until clients find the bucket full, for a history with leased
// tokens. It is ResetAfter, except for a fixed window: it is full when it ends, even if tokens also
// count in the next window.
func (w Windows) FullAfter(h *History, now Instant) Span {
	if w.Algorithm != FixedWindow || len(h.Marks) == 0 {
		return w.ResetAfter(h, now)
	}
	return Span(max(w.startOf(h.Last)+Instant(w.Grain)-now, 0))
}

// ReadyToLend returns the first instant at which n tokens are available for use within span if no
// other node takes any, for n up to the quota.
func (w Windows) ReadyToLend(h *History, n int64, span Span) Instant {
	if w.Algorithm != FixedWindow {
		return w.Ready(h, n)
	}
	at := h.Last
	for i := 0; i < len(h.Marks) && min(w.tokensLeft(h, at), w.tokensLeft(h, at+Instant(span))) < n; i++ {
		at = max(at, w.Leaves(h.Marks[i]))
	}
	return at
}
