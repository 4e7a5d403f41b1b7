package quota

// Reservation is the tokens that a request has taken from a bucket before its cost was known. They
// count since From by the bucket's clock. At is when they count in a history; it differs from From
// if they were lent and count at their latest possible use.
type Reservation struct {
	From, At Instant
	Tokens   int64
}

// Parts is the number of parts of a token in which settlements are counted. Tokens that have come
// back by themselves leave a fraction of a token to give back.
const Parts = 1000

// owedAtMost is where debts saturate: above every full bucket, and below the numbers that Lua holds
// exactly.
const owedAtMost = MaxUnits + MaxUnits/4

// TakeOwing is Take for a bucket that may owe more than a full bucket, because requests have cost
// more than they had reserved. No request changes a debt beyond the burst.
func (p Params) TakeOwing(s State, now Instant, n int64) (State, Result) {
	s = p.Drain(s, now)
	debt := s.Debt - p.Burst*p.Den
	if debt <= 0 {
		return p.Take(s, now, n)
	}
	_, result := p.Take(s, now, n)
	if n > 0 && n <= p.Burst {
		result.RetryAfter = ceilDiv(debt+n*p.Den, p.Num) + timeBehind(s, now)
	}
	return s, result
}

// Settle changes a reservation to its actual cost, and returns the units that it gave back; they
// are negative if it took more. A reservation comes back by itself at the rate of the bucket. Only
// the rest is given back, to a unit, so the bucket never holds more than if the cost had been known
// at once. A missing part is taken, down to debt.
func (p Params) Settle(s State, now Instant, r Reservation, actual int64) (State, int64) {
	s = p.Drain(s, now)
	back := r.Tokens - actual
	if back <= 0 {
		before := s.Debt
		s.Debt = min(s.Debt+p.debtOf(-back), owedAtMost)
		return s, before - s.Debt
	}
	held := p.debtOf(r.Tokens)
	if earned := int64(s.Last - r.From); earned > held/p.Num {
		held = 0
	} else {
		held -= earned * p.Num
	}
	units := min(p.debtOf(back), held, s.Debt)
	s.Debt -= units
	return s, units
}

// PartsOf returns units in parts of a token. Units that are given back are rounded up, so that they
// are not 0.
func (p Params) PartsOf(units int64) int64 {
	rest := units % p.Den * Parts
	if rest > 0 {
		rest += p.Den - 1
	}
	return units/p.Den*Parts + rest/p.Den
}

// debtOf returns the debt of n tokens, which may be more than a full bucket.
func (p Params) debtOf(n int64) int64 {
	if n > owedAtMost/p.Den {
		return owedAtMost
	}
	return n * p.Den
}

// Settle changes a reservation to its actual cost, and returns the tokens that it gave back; they
// are negative if it took more. The history is at its owner's now. A reservation that counts no
// more changes nothing. If its own mark has moved, earlier marks shrink in its place. They stop
// counting sooner, so no window ever holds more than if the cost had been known at once.
func (w Windows) Settle(h *History, r Reservation, actual int64) (back int64) {
	back = w.settleAt(h, r, r.At, actual)
	if w.Algorithm == FixedWindow && w.startOf(r.From) != w.startOf(r.At) { // It counts in both windows.
		if current := w.settleAt(h, r, r.From, actual); current != 0 {
			back = current
		}
	}
	return back
}

func (w Windows) settleAt(h *History, r Reservation, at Instant, actual int64) int64 {
	start, back := w.startOf(at), r.Tokens-actual
	switch {
	case back == 0, w.Leaves(Mark{Start: start}) <= h.Last, back > 0 && r.From < h.Since:
		return 0
	case back < 0:
		w.addTo(h, at, -back)
		return back
	}
	left, kept := back, 0
	for i := len(h.Marks) - 1; i >= 0; i-- {
		m := &h.Marks[i]
		if m.Start == start || m.Start < start && w.Algorithm != FixedWindow {
			left -= w.shrinkMark(h, r, m, start, left)
		}
	}
	for _, m := range h.Marks {
		if m.Count > 0 {
			h.Marks[kept] = m
			kept++
		}
	}
	h.Marks = h.Marks[:kept]
	return back - left
}

// shrinkMark takes up to n tokens out of a mark, for a reservation that counts at start, and
// returns how many it took. It takes no tokens that were used after the reservation's tokens were
// given back.
func (w Windows) shrinkMark(h *History, r Reservation, m *Mark, start Instant, n int64) int64 {
	n = min(n, m.Count)
	if r.From < h.Released {
		switch released := w.startOf(h.Released - 1); {
		case m.Start == released:
			n = min(n, h.Kept)
			h.Kept -= n
		case m.Start > released && m.Start != start: // Its own mark was lent ahead, and stayed.
			return 0
		}
	}
	m.Count -= n
	return n
}

// Release gives back up to n tokens that count at the history's time, first the tokens that count
// longest, and returns how many it gave back. Tokens that are lent beyond that time stay. Older
// reservations do not give the same tokens back again: see History.Released.
func (w Windows) Release(h *History, n int64) (given int64) {
	kept := h.Marks[:0]
	for i := len(h.Marks) - 1; i >= 0; i-- {
		if m := &h.Marks[i]; m.Start <= h.Last {
			back := min(m.Count, n-given)
			m.Count -= back
			given += back
		}
	}
	h.Since = max(h.Since, h.Released)
	h.Released, h.Kept = h.Last+1, 0
	for _, m := range h.Marks {
		if m.Start == w.startOf(h.Last) {
			h.Kept = m.Count
		}
		if m.Count > 0 {
			kept = append(kept, m)
		}
	}
	h.Marks = kept
	return given
}

// addTo adds to the mark of an instant. If there is none, and no room for a new mark, the latest
// mark grows, which counts longest.
func (w Windows) addTo(h *History, at Instant, n int64) {
	w.Add(h, at, n)
	if last := len(h.Marks) - 1; last >= MaxMarks {
		h.Marks[last].Count += h.Marks[last-1].Count
		h.Marks[last-1] = h.Marks[last]
		h.Marks = h.Marks[:last]
	}
	for i := range h.Marks {
		h.Marks[i].Count = min(h.Marks[i].Count, w.MostCounted())
	}
}
