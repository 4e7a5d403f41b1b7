package quota

// Room is how many tokens are available at the history's time for use until an instant.
func (w Windows) Room(h *History, until Instant) int64 {
	room := w.available(h, h.Last)
	if w.Algorithm == FixedWindow {
		room = min(room, w.available(h, until))
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
	case w.Algorithm == FixedWindow && w.start(until) != w.start(h.Last):
		w.Add(h, h.Last, n)
	}
	w.Add(h, until, n)
}

// FullAfter is the wait from now until clients find the bucket full, for a history with leased
// tokens. It is ResetAfter, except for a fixed window: that is full when it ends, even if tokens
// count in the next one too.
func (w Windows) FullAfter(h *History, now Instant) Span {
	if w.Algorithm != FixedWindow || len(h.Marks) == 0 {
		return w.ResetAfter(h, now)
	}
	return Span(max(w.start(h.Last)+Instant(w.Grain)-now, 0))
}

// ReadyToLend is the first instant at which n tokens are available for use within span if no other
// node takes any, for n up to the quota.
func (w Windows) ReadyToLend(h *History, n int64, span Span) Instant {
	if w.Algorithm != FixedWindow {
		return w.Ready(h, n)
	}
	at := h.Last
	for i := 0; i < len(h.Marks) && min(w.available(h, at), w.available(h, at+Instant(span))) < n; i++ {
		at = max(at, w.Leaves(h.Marks[i]))
	}
	return at
}
