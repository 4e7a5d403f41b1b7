package quota

// Room is how many tokens can be had at the history's time for use until an instant.
func (w Windows) Room(h *History, until Instant) int64 {
	room := w.available(h, h.Last)
	if w.Algorithm == FixedWindow {
		room = min(room, w.available(h, until))
	}
	return max(0, room)
}

// Lend counts n tokens that may be used from the history's time until an instant less than a fixed window away. They count when
// they may be used last, and of fixed windows in both that they may be used in. The counter counts them at once: its estimate
// weighs the time of requests, and what it does not see now it would lend twice.
func (w Windows) Lend(h *History, until Instant, n int64) {
	switch {
	case w.Algorithm == SlidingWindowCounter:
		until = h.Last
	case w.Algorithm == FixedWindow && w.start(until) != w.start(h.Last):
		w.Add(h, h.Last, n)
	}
	w.Add(h, until, n)
}

// FullAfter is the wait from now until clients find the bucket full, for a history that tokens may be lent of. It is ResetAfter,
// but for a fixed window: that is full when it ends, whatever has been lent for the one after it too.
func (w Windows) FullAfter(h *History, now Instant) Span {
	if w.Algorithm != FixedWindow || len(h.Marks) == 0 {
		return w.ResetAfter(h, now)
	}
	return Span(max(w.start(h.Last)+Instant(w.Grain)-now, 0))
}

// ReadyToLend is the first instant at which n tokens can be had for use within span if nobody else takes any, for n up to the
// quota.
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
