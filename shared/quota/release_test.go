package quota_test

import (
	"math"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// Timelines of a window of a second with grains of 100 ms, from the grain that begins at 1.2 s. A
// request reserves 3 tokens, an operator gives all tokens back, and others use tokens afterwards.
// Then it is known that the request cost nothing. It gives no token back that was given back
// before, and none that others use. A reservation that the operator left comes back whole.
func TestSettleAfterARelease(t *testing.T) {
	w := windowsOf(t, quota.SlidingWindow, 100, quota.Second, 10)
	const ms = quota.Instant(quota.Millisecond)
	const before, start, next = 1100 * ms, 1200 * ms, 1300 * ms
	none := quota.Mark{}
	for name, c := range map[string]struct {
		from, at  quota.Instant
		marks     marks // until the operator gives tokens back
		released  quota.Instant
		given     int64
		used      quota.Mark // afterwards, at an instant
		back      int64
		wantMarks marks
	}{
		"used again in the same microsecond": {
			start + 50*ms, start + 50*ms, marks{{start, 3}}, start + 50*ms, 3,
			quota.Mark{Start: start + 50*ms, Count: 4}, 0, marks{{start, 4}},
		},
		"given back when its grain begins": {
			start, start, marks{{start, 3}}, start, 3, quota.Mark{Start: start + 50*ms, Count: 4}, 0, marks{{start, 4}},
		},
		"given back when its grain ends": {
			start, start, marks{{start, 3}}, next - 1, 3, quota.Mark{Start: next - 1, Count: 4}, 0, marks{{start, 4}},
		},
		"reserved a microsecond later": {
			start + 1, start + 1, marks{{start, 5}}, start, 5, quota.Mark{Start: start + 1, Count: 3}, 3, marks{},
		},
		"lent beyond that time": {
			start, next, marks{{before, 5}, {next, 3}}, start + 50*ms, 5, none, 3, marks{},
		},
		"lent beyond that time, and taken back": {
			start, next + 100*ms, marks{{before, 5}}, start + 50*ms, 5, quota.Mark{Start: next, Count: 4}, 0,
			marks{{next, 4}},
		},
		"taken back, and others use the grain of that time": {
			start, next, marks{{before, 5}}, start + 50*ms, 5, quota.Mark{Start: start + 60*ms, Count: 4}, 0,
			marks{{start, 4}},
		},
	} {
		h := quota.History{Last: c.released, Marks: slices.Clone(c.marks)}
		given := w.Release(&h, math.MaxInt64)
		if c.used != none {
			w.Advance(&h, c.used.Start)
			w.Add(&h, c.used.Start, c.used.Count)
		}
		back := w.Settle(&h, quota.Reservation{From: c.from, At: c.at, Tokens: 3}, 0)
		if given != c.given || back != c.back || !slices.Equal(h.Marks, c.wantMarks) {
			t.Errorf("%s: the operator gave back %d, the request %d, %+v; want %d, %d, %+v",
				name, given, back, h.Marks, c.given, c.back, c.wantMarks)
		}
	}
}

// A bucket whose tokens an operator has given back is full at once, and can be forgotten.
func TestReleaseLeavesAFullBucket(t *testing.T) {
	for _, a := range windowed {
		w := windowsOf(t, a, 10, quota.Second, 10)
		now := quota.Instant(quota.Hour)
		var h quota.History
		w.Take(&h, now, 7)
		given, wait, forgettable := w.Release(&h, 9), w.ResetAfter(&h, now), w.Forgettable(&h)
		if given != 7 || wait != 0 || forgettable != now {
			t.Errorf("%v: %d given back, full after %d, forgotten %d later; want 7, 0, 0",
				a, given, wait, forgettable-now)
		}
	}
}

// A history knows nothing of reservations from before it began, so they give none of its tokens
// back, even after an operator gave others back. A reservation of its first instant gives back its
// own tokens.
func TestReservationsFromBeforeTheHistory(t *testing.T) {
	w := windowsOf(t, quota.SlidingWindow, 100, quota.Second, 10)
	const began quota.Instant = 1_250_000
	for name, c := range map[string]struct {
		from     quota.Instant
		released int64
		back     int64
	}{
		"before the first instant":         {began - 1, 0, 0},
		"at the first instant":             {began, 0, 3},
		"before, and others were released": {began - 1, 2, 0},
		"first, and others were released":  {began, 2, 3},
	} {
		h := quota.History{Last: began, Since: began}
		w.Add(&h, began, 5)
		w.Advance(&h, began+1)
		if c.released > 0 {
			w.Release(&h, c.released)
		}
		r := quota.Reservation{From: c.from, At: c.from, Tokens: 3}
		left := 5 - c.released - c.back
		if back := w.Settle(&h, r, 0); back != c.back || w.Remaining(&h) != 100-left {
			t.Errorf("%s: %d came back, %d are left; want %d, %d", name, back, w.Remaining(&h), c.back, 100-left)
		}
	}
}

// Three requests of a log cost 3 tokens each, which is known after an operator has reset the log
// and other requests have filled it. The log keeps no more marks than it may, and forgets no token
// that it is owed.
func TestCostsOfAFullLog(t *testing.T) {
	w := windowsOf(t, quota.SlidingLog, quota.MaxLog, quota.Minute, 0)
	var h quota.History
	for at := range quota.Instant(3) {
		w.Take(&h, at, 1)
	}
	w.Release(&h, 3)
	for at := range quota.Instant(quota.MaxLog - 2) {
		w.Take(&h, 3+at, 1)
	}
	const last = 1000
	if !w.Take(&h, last, 2).Allowed || w.Remaining(&h) != 0 {
		t.Fatalf("%d are left after the quota was used", w.Remaining(&h))
	}
	for at := range quota.Instant(3) {
		if back := w.Settle(&h, quota.Reservation{From: at, At: at, Tokens: 1}, 3); back != -2 {
			t.Errorf("%d came back of a request that cost 2 more", back)
		}
	}
	if owed := w.Owed(&h); owed != 6 || len(h.Marks) != quota.MaxMarks {
		t.Errorf("%d tokens are owed and %d marks kept, want 6 and %d", owed, len(h.Marks), quota.MaxMarks)
	}
	if got, want := h.Marks[len(h.Marks)-1], (quota.Mark{Start: last, Count: 3}); got != want {
		t.Errorf("the latest mark is %+v, want %+v: it counts longest", got, want)
	}
}

// A request costs far more than it had reserved, after its limit has become an estimate. The
// estimate stays exact: nothing is left while the cost still weighs more than the quota.
func TestCostOfACounter(t *testing.T) {
	for _, length := range []quota.Span{quota.Hour, quota.Day, 30 * quota.Day, quota.MaxWindow} {
		was := windowsOf(t, quota.SlidingWindow, 1000, length, 10)
		w := windowsOf(t, quota.SlidingWindowCounter, 1000, length, 0)
		now := quota.Instant(length)
		var h quota.History
		was.Take(&h, now, 1)
		was.Convert(&h, now+1, w)
		w.Settle(&h, quota.Reservation{From: now, At: now, Tokens: 1}, 1<<32)
		w.Advance(&h, 2*now+now/10)
		if left := w.Remaining(&h); left != 0 {
			t.Errorf("a window of %d: %d are left, want 0", length, left)
		}
	}
}
