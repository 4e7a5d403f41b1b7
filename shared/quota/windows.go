package quota

import (
	"errors"
	"strconv"
)

// Bounds of the window algorithms, and the default of sliding_window.
const (
	// MaxLog is the largest quota of a sliding log, which remembers every admitted request.
	MaxLog = 256
	// MaxSubwindows is the largest number of parts of a sliding window.
	MaxSubwindows     = 60
	DefaultSubwindows = 10
	// MaxMarks bounds the marks of a history, including future marks for leases.
	MaxMarks = MaxLog + 1
)

// Windows are the fixed figures of a limit that counts recent admissions. All window algorithms
// work the same way: admitted requests leave marks. A mark is the number of tokens admitted in one
// grain of time, and it counts until a certain time after the grain began.
//
//	fixed_window            one grain is the window; a mark counts until its grain ends
//	sliding_window          k grains are the window; a mark counts until no window reaches it
//	sliding_log             the same with a grain of one microsecond: exact
//	sliding_window_counter  one grain is the window; the mark before the current one counts by the
//	                        part that a window of full length still covers, as if its requests
//	                        had come evenly
//
// The zero value is not usable; make one with NewWindows.
type Windows struct {
	Algorithm Algorithm
	Quota     int64
	// Length is the window, Grain the resolution of time, Offset the start of the grains.
	Length, Grain, Offset Span
}

// Mark is the number of tokens admitted in the grain that begins at Start.
type Mark struct {
	Start Instant
	Count int64
}

// History is the stored state of a windowed limit: the marks that still count, the earliest first,
// at Last. The zero value has admitted nothing; a forgotten history equals it.
type History struct {
	Last  Instant
	Marks []Mark
	// Reservations made before Since give nothing back, because the history may not have their
	// tokens. Since is when the history began, or was released before the last time; 0 for a
	// history without reservations.
	Since Instant
	// Released is when tokens in their windows were last given back, 0 for never. Kept is the
	// number of older tokens in the mark of that instant. Settlements of older reservations give
	// back only these tokens of the mark, because the other tokens were used later.
	Released Instant
	Kept     int64
	// Reach is set after a limit with a longer window: marks are kept for this time after their
	// start, although they do not count any more. They count again if the window is longer again.
	// Until is when the last of them is dropped. Later marks are kept too: otherwise a limit that
	// changes back and forth would let through more each time.
	Reach Span
	Until Instant
}

// NewWindows makes the figures of a window algorithm; subwindows is for SlidingWindow alone. It
// refuses figures that cannot be counted exactly. The error names the figure to change.
func NewWindows(a Algorithm, quota int64, length Span, subwindows int) (Windows, error) {
	w := Windows{Algorithm: a, Quota: quota, Length: length, Grain: length}
	// Bounds of all algorithms.
	switch {
	case quota < 1 || quota > MaxUnits:
		return Windows{}, errors.New("quota must be at least 1 and at most " + strconv.FormatInt(MaxUnits, 10))
	case length < Second || length > MaxWindow || length%Millisecond != 0:
		return Windows{}, errors.New("window must be at least 1s and at most 366d, in whole milliseconds")
	}
	// The grain and the bounds of each algorithm.
	switch a {
	case FixedWindow:
	case SlidingWindow:
		if subwindows < 1 || subwindows > MaxSubwindows {
			return Windows{}, errors.New("subwindows must be 1 to " + strconv.Itoa(MaxSubwindows))
		}
		w.Grain = ceilDiv(int64(length), int64(subwindows))
	case SlidingLog:
		if quota > MaxLog {
			return Windows{}, errors.New("a sliding_log remembers every request: its quota is at most " +
				strconv.Itoa(MaxLog) +
				"; sliding_window keeps the same bound for larger ones")
		}
		w.Grain = 1
	case SlidingWindowCounter:
		if quota > MaxUnits/int64(length/Millisecond) {
			return Windows{}, errors.New("quota and window need more than exact arithmetic holds: at most a quota of " +
				strconv.FormatInt(MaxUnits/int64(length/Millisecond), 10) + " with this window")
		}
	default:
		return Windows{}, errors.New(a.String() + " does not count in windows")
	}
	return w, nil
}

// At returns w with its grains moved by a bucket's own offset, any number. So keys do not all start
// anew at the same instant.
func (w Windows) At(offset uint64) Windows {
	w.Offset = Span(offset % uint64(w.Grain))
	return w
}

// Take spends n tokens at now. A refused Take spends nothing; a cost of 0 only looks; a negative
// cost counts as 0. It changes h in place, and adds at most one mark.
//
// No more than the quota passes in any window; for a fixed window, in any window of its grid. Only
// the counter uses an estimate: estimate + n never exceeds the quota, but up to 2·quota - 1 can
// really pass in a window.
func (w Windows) Take(h *History, now Instant, n int64) Result {
	at := w.Advance(h, now)
	switch {
	case n <= 0:
		return Result{Allowed: true}
	case n > w.Quota:
		return Result{RetryAfter: Never}
	case w.tokensLeft(h, at) < n:
		return Result{RetryAfter: Span(w.Ready(h, n) - now)}
	}
	w.Add(h, at, n)
	return Result{Allowed: true}
}

// Advance brings h to now, unless now lies before its time, and drops marks that neither count any
// more nor are kept. It returns the history's time.
func (w Windows) Advance(h *History, now Instant) Instant {
	h.Last = max(h.Last, now)
	if h.Reach > 0 {
		w.Keep(h, h.Reach)
	}
	gone := 0
	for gone < len(h.Marks) && w.keptUntil(h, h.Marks[gone]) <= h.Last {
		gone++
	}
	if gone > 0 {
		h.Marks = append(h.Marks[:0], h.Marks[gone:]...)
	}
	if h.Reach > 0 {
		w.thinMarks(h)
	}
	return h.Last
}

// SetBack brings h back to now if it is ahead by a grain or more, because its clock was wrong.
// Tokens that were admitted then count now (on a grid, in the window of now), so they are forgotten
// after one window. A clock that is ahead by less stands still. SetBack reports whether h was
// changed.
func (w Windows) SetBack(h *History, now Instant) bool {
	if h.Last-now < Instant(w.Grain) {
		return false
	}
	by := w.startOf(h.Last) - w.startOf(now)
	for i := range h.Marks {
		h.Marks[i].Start -= by
	}
	h.Last, h.Until = now, h.Until-by
	return true
}

// Add counts n tokens in the grain of an instant.
func (w Windows) Add(h *History, at Instant, n int64) {
	start := w.startOf(at)
	i := len(h.Marks)
	for i > 0 && h.Marks[i-1].Start > start {
		i--
	}
	if i > 0 && h.Marks[i-1].Start == start {
		h.Marks[i-1].Count += n
		return
	}
	h.Marks = append(h.Marks, Mark{})
	copy(h.Marks[i+1:], h.Marks[i:])
	h.Marks[i] = Mark{start, n}
}

// Remaining returns the number of tokens that an immediate caller could take from h, which is at
// the caller's now.
func (w Windows) Remaining(h *History) int64 { return max(0, w.tokensLeft(h, h.Last)) }

// Owed returns by how many tokens the quota is exceeded at the history's time.
func (w Windows) Owed(h *History) int64 { return max(0, -w.tokensLeft(h, h.Last)) }

// ResetAfter returns the wait from now until nothing counts any more.
func (w Windows) ResetAfter(h *History, now Instant) Span {
	if len(h.Marks) == 0 {
		return 0
	}
	return Span(max(w.Leaves(h.Marks[len(h.Marks)-1])-now, 0))
}

// Leaves returns when a mark stops counting.
func (w Windows) Leaves(m Mark) Instant {
	switch w.Algorithm {
	case FixedWindow:
		return m.Start + Instant(w.Grain)
	case SlidingWindowCounter:
		return m.Start + 2*Instant(w.Length)
	}
	// When the last microsecond of its grain is out of the window (t - length, t].
	return m.Start + Instant(w.Grain-1+w.Length)
}

// Counts returns until when a token counts that was admitted at an instant.
func (w Windows) Counts(at Instant) Instant { return w.Leaves(Mark{Start: w.startOf(at)}) }

// Ready returns the first instant at which n tokens are available if no other caller takes any, for
// n up to the quota. It may be before the history's time.
func (w Windows) Ready(h *History, n int64) Instant {
	if w.tokensLeft(h, h.Last) >= n {
		return h.Last
	}
	switch w.Algorithm {
	case SlidingWindowCounter:
		return w.readyByWeight(h, n)
	case FixedWindow:
		for _, m := range h.Marks {
			if next := w.Leaves(m); next > h.Last && w.tokensLeft(h, next) >= n {
				return next
			}
		}
	}
	over := n - w.tokensLeft(h, h.Last)
	for _, m := range h.Marks {
		leaves := w.Leaves(m)
		if leaves <= h.Last {
			continue
		}
		over -= m.Count
		if over <= 0 {
			return leaves
		}
	}
	return h.Last
}

// tokensLeft returns the tokens left at an instant not before the history's time; below 0 if a
// lowered quota is exceeded.
func (w Windows) tokensLeft(h *History, at Instant) int64 {
	if w.Algorithm == SlidingWindowCounter {
		before, current := w.windowCounts(h, at)
		unit := w.weightUnit(before)
		whole := int64(w.Length / unit)
		covered := whole - int64(Span(at-w.startOf(at))/unit)
		// The tokens that fit beside the weighted part of the window before. A fraction of a token
		// counts as a whole token.
		return w.Quota - current - int64(ceilDiv(before*covered, whole))
	}
	left := w.Quota
	for _, m := range h.Marks {
		// Leased tokens count in the fixed window of their latest possible use.
		if w.Algorithm == FixedWindow && m.Start == w.startOf(at) || w.Algorithm != FixedWindow && w.Leaves(m) > at {
			left -= m.Count
		}
	}
	return left
}

// windowCounts returns the counts of the window before an instant and of its own window.
func (w Windows) windowCounts(h *History, at Instant) (before, current int64) {
	start := w.startOf(at)
	for _, m := range h.Marks {
		switch m.Start {
		case start:
			current = m.Count
		case start - Instant(w.Length):
			before = m.Count
		}
	}
	return before, current
}

// readyByWeight is Ready for the counter: the weight of the window before fades, or the current
// window becomes the window before.
func (w Windows) readyByWeight(h *History, n int64) Instant {
	before, current := w.windowCounts(h, h.Last)
	start := w.startOf(h.Last)
	if current+n > w.Quota {
		before, current, start = current, 0, start+Instant(w.Length)
	}
	if before == 0 {
		return start
	}
	unit := w.weightUnit(before)
	whole := int64(w.Length / unit)
	elapsed := max(0, whole-(w.Quota-current-n)*whole/before)
	return start + Instant(Span(elapsed)*unit)
}

// weightUnit returns the resolution of the counter's weights: a microsecond if the products with
// the quota and the count before fit, else a millisecond.
func (w Windows) weightUnit(before int64) Span {
	if max(w.Quota, before) > MaxUnits/int64(w.Length) {
		return Millisecond
	}
	return 1
}

// startOf returns the beginning of the grain of an instant.
func (w Windows) startOf(at Instant) Instant {
	past := (at - Instant(w.Offset)) % Instant(w.Grain)
	if past < 0 {
		past += Instant(w.Grain)
	}
	return at - past
}

// convertAhead adds a mark of tokens that are leased until a later grain, whose last instant is at.
// If a mark counts in one window only, it must count now as well, because the tokens may be used
// now.
func (w Windows) convertAhead(h *History, m Mark, at Instant, next Windows) {
	switch {
	case next.Algorithm == SlidingWindowCounter:
		at = h.Last
	case next.Algorithm == FixedWindow && w.Algorithm == FixedWindow:
		at = m.Start // Its twin in the window of now has been counted there.
	case next.Algorithm == FixedWindow && next.startOf(at) != next.startOf(h.Last):
		next.Add(h, h.Last, m.Count)
	}
	next.Add(h, at, m.Count)
}

// Owing returns a history that counts n tokens, at most the quota, from now until at least an
// instant, as far as the algorithm can. It replaces a lost bucket that counted at most n tokens,
// and none after that instant. It is empty if the instant has passed.
func (w Windows) Owing(now, until Instant, n int64) History {
	h := History{Last: now}
	n = min(n, w.Quota)
	if until <= now || n <= 0 {
		return h
	}
	switch w.Algorithm {
	case FixedWindow:
		w.Add(&h, now, n)
		if next := w.startOf(now) + Instant(w.Grain); until > next {
			w.Add(&h, next, n)
		}
	case SlidingWindowCounter:
		w.Add(&h, now, n)
	default:
		w.Add(&h, min(until-Instant(w.Length), now), n)
	}
	return h
}

// Admitted returns the largest number of tokens of h that count at the same time.
func (w Windows) Admitted(h *History) (n int64) {
	for _, m := range h.Marks {
		if w.Algorithm == FixedWindow { // One mark counts at a time.
			n = max(n, m.Count)
			continue
		}
		n += m.Count
	}
	return n
}
