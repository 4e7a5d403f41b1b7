package quota

// Reservation is what a request has taken of a bucket before its cost was known: Tokens that count
// since From by the bucket's clock. At is when they count in a history; it differs from From where
// they were lent and count at their latest possible use.
type Reservation struct {
	From, At Instant
	Tokens   int64
}

// owedAtMost is where debts saturate: above every full bucket, and below what Lua holds exactly.
const owedAtMost = MaxUnits + MaxUnits/4

// TakeOwing is Take for a bucket that may owe more than it holds, because requests have cost more
// than they had reserved.
func (p Params) TakeOwing(s State, now Instant, n int64) (State, Result) {
	s = p.Drain(s, now)
	if debt := s.Debt - p.Burst*p.Den; debt > 0 && n > 0 && n <= p.Burst {
		return s, Result{RetryAfter: ceilDiv(debt+n*p.Den, p.Num) + behind(s, now)}
	}
	return p.Take(s, now, n)
}

// Settle makes a reservation cost what it has cost, and returns the tokens that it gave back, below
// 0 the tokens that it took. A reservation comes back by itself at the rate of the bucket: only
// what has not come back yet is given back, so the bucket never holds more than if the cost had
// been known at once. What was too little is taken, down to debt.
func (p Params) Settle(s State, now Instant, r Reservation, actual int64) (State, int64) {
	s = p.Drain(s, now)
	back := r.Tokens - actual
	if back <= 0 {
		s.Debt = min(s.Debt+p.owing(-back), owedAtMost)
		return s, back
	}
	held := p.owing(r.Tokens)
	if earned := int64(s.Last - r.From); earned > held/p.Num {
		held = 0
	} else {
		held -= earned * p.Num
	}
	units := min(p.owing(back), held, s.Debt)
	s.Debt -= units
	return s, units / p.Den
}

// owing is the debt of n tokens, which may be more than the bucket holds.
func (p Params) owing(n int64) int64 {
	if n > owedAtMost/p.Den {
		return owedAtMost
	}
	return n * p.Den
}

// Settle makes a reservation cost what it has cost, and returns the tokens that it gave back, below
// 0 the tokens that it took. The history is at its owner's now. A reservation that counts no more
// changes nothing. Where its own mark has moved, earlier marks shrink in its place: those stop
// counting sooner, so no window ever holds more than if the cost had been known at once.
func (w Windows) Settle(h *History, r Reservation, actual int64) (back int64) {
	back = w.settleAt(h, r.At, r.Tokens-actual)
	if w.Algorithm == FixedWindow && w.start(r.From) != w.start(r.At) { // It counts in both windows.
		if current := w.settleAt(h, r.From, r.Tokens-actual); current != 0 {
			back = current
		}
	}
	return back
}

func (w Windows) settleAt(h *History, at Instant, back int64) int64 {
	start := w.start(at)
	if back == 0 || w.Leaves(Mark{Start: start}) <= h.Last {
		return 0
	}
	if back < 0 {
		w.grow(h, at, -back)
		return back
	}
	left, kept := back, 0
	for i := len(h.Marks) - 1; i >= 0; i-- {
		m := &h.Marks[i]
		if m.Start == start || m.Start < start && w.Algorithm != FixedWindow {
			n := min(m.Count, left)
			m.Count -= n
			left -= n
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

// grow adds to the mark of an instant. If there is none, and no room for another, the latest grows,
// which counts longest.
func (w Windows) grow(h *History, at Instant, n int64) {
	w.Add(h, at, n)
	if last := len(h.Marks) - 1; last >= MaxMarks {
		h.Marks[last].Count += h.Marks[last-1].Count
		h.Marks[last-1] = h.Marks[last]
		h.Marks = h.Marks[:last]
	}
	for i := range h.Marks {
		h.Marks[i].Count = min(h.Marks[i].Count, MaxUnits)
	}
}
