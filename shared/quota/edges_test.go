package quota_test

import (
	"math/big"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// The edges of figures and states, some of which no requests lead to: each is the least that tells
// a < from a <=.

func TestWindowed(t *testing.T) {
	for a, want := range map[quota.Algorithm]bool{
		quota.TokenBucket: false, quota.LeakyBucket: false, quota.FixedWindow: true, quota.SlidingWindow: true,
		quota.SlidingWindowCounter: true, quota.SlidingLog: true,
	} {
		if a.Windowed() != want {
			t.Errorf("%v is windowed: %v", a, a.Windowed())
		}
	}
}

// The largest figures that can be computed with are accepted, and a whole part of them is they
// themselves.
func TestLargestParams(t *testing.T) {
	for _, want := range []quota.Params{
		{Num: quota.MaxUnits, Den: 1, Burst: 1}, {Num: 1, Den: 1, Burst: quota.MaxUnits},
		{Num: quota.MaxUnits, Den: 1, Burst: quota.MaxUnits},
	} {
		p, err := quota.NewParams(want.Num, 1, want.Burst)
		if err != nil || p != want || p.Part(1, 1, p.Burst) != p {
			t.Errorf("%+v: got %+v, its whole part is %+v, %v", want, p, p.Part(1, 1, p.Burst), err)
		}
	}
	if _, err := quota.NewParams(1, quota.MaxWindow, 1); err != nil {
		t.Error(err)
	}
}

// A part that cannot be computed with exactly is rounded down, and never to nothing.
func TestPartIsRoundedDown(t *testing.T) {
	p := must(t, 1_000_003, quota.MaxWindow, 100)
	part := p.Part(499, 1000, 50)
	if limit := int64(quota.MaxUnits / 50); part.Den != limit {
		t.Fatalf("%+v is not at its limit", part)
	}
	exact := new(big.Rat).Mul(big.NewRat(p.Num, p.Den), big.NewRat(499, 1000))
	if want := floor(exact.Mul(exact, big.NewRat(part.Den, 1))); part.Num != want || want < 2 {
		t.Errorf("%+v, want num %d", part, want)
	}
	// Above MaxUnits both parts of the rate shrink, and the burst still has to fit.
	const many = 4_000_000_000
	if fast := must(t, 450_359_962_737_049, quota.Second, many).Part(999, 1000, many); fast.Den != quota.MaxUnits/many {
		t.Errorf("%+v, want den %d", fast, int64(quota.MaxUnits/many))
	}
	// So slow a part earns one token in its time, and has a burst that can be computed with.
	if slow := must(t, 1, quota.MaxWindow, 142).Part(10, 1000, 142); slow.Num != 1 ||
		slow.Den != 100*int64(quota.MaxWindow) || slow.Burst != 1 {
		t.Errorf("%+v, want a token in a hundred times the window", slow)
	}
	// A token in just less and in just more than the longest time that 142 of them can be computed
	// with.
	year := must(t, 1, quota.MaxWindow, 142)
	if got, want := year.Part(999, 1000, 142), (quota.Params{Num: 1, Den: quota.MaxUnits / 142, Burst: 142}); got !=
		want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := year.Part(997, 1000, 142), (quota.Params{Num: 1, Den: 31_717_552_657_974, Burst: 141}); got !=
		want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestEarned(t *testing.T) {
	for _, c := range []struct {
		num  int64
		span quota.Span
		want int64
	}{
		{5, -3, 0}, {5, 0, 0}, {5, 3, 15}, {quota.MaxUnits, 1, quota.MaxUnits}, {quota.MaxUnits, 2, quota.MaxUnits},
		{quota.MaxUnits, 1 << 12, quota.MaxUnits}, {quota.MaxUnits, 1 << 13, quota.MaxUnits},
	} {
		if got := must(t, c.num, 1, 1).Earned(c.span); got != c.want {
			t.Errorf("%d a microsecond for %d: %d, want %d", c.num, c.span, got, c.want)
		}
	}
}

func TestNoRateIsSlowerThanItself(t *testing.T) {
	p, q := must(t, 3, quota.Second, 1), must(t, 4, quota.Second, 9)
	if p.SlowerThan(p) || !p.SlowerThan(q) || q.SlowerThan(p) {
		t.Error("3/s, 4/s and themselves compare wrong")
	}
}

// A full bucket is full, also for a clock that is behind the bucket's. A bucket with the least debt
// is not full.
func TestResetAfterOfAlmostFull(t *testing.T) {
	p := must(t, 1, 10, 10)
	if got := p.ResetAfter(quota.State{Last: 10}, 5); got != 0 {
		t.Errorf("a full bucket is full after %d", got)
	}
	if got := p.ResetAfter(quota.State{Debt: 1, Last: 10}, 5); got != 6 {
		t.Errorf("a unit of debt at 10 is gone %d after 5, want 6", got)
	}
}

func TestNewWindowsAtItsBounds(t *testing.T) {
	for _, length := range []quota.Span{quota.Second - quota.Millisecond, quota.MaxWindow + quota.Millisecond} {
		if w, err := quota.NewWindows(quota.FixedWindow, 1, length, 0); err == nil {
			t.Errorf("accepted %+v", w)
		}
	}
	for _, c := range []struct {
		a     quota.Algorithm
		quota int64
		len   quota.Span
		k     int
	}{
		{quota.FixedWindow, quota.MaxUnits, quota.Second, 0}, {quota.FixedWindow, 1, quota.MaxWindow, 0},
		{quota.SlidingWindow, 1, quota.Second, 1},
		{quota.SlidingWindow, 1, quota.Second, quota.MaxSubwindows}, {quota.SlidingLog, quota.MaxLog, quota.Second, 0},
		{quota.SlidingWindowCounter, quota.MaxUnits / 1000, quota.Second, 0},
	} {
		if _, err := quota.NewWindows(c.a, c.quota, c.len, c.k); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// More than the quota may be on the books, after a change of figures. Then nothing is left, and a
// look is allowed all the same.
func TestWindowsOverQuota(t *testing.T) {
	w := windowsOf(t, quota.FixedWindow, 10, quota.Second, 0)
	h := quota.History{Last: 5, Marks: []quota.Mark{{Start: 0, Count: 12}}}
	if left, room := w.Remaining(&h), w.Room(&h, 6); left != 0 || room != 0 {
		t.Errorf("%d left, room for %d", left, room)
	}
	if r := w.Take(&h, 5, 0); !r.Allowed {
		t.Error("a look was refused")
	}
}

// Tokens are only in the next window: tokens used across its border must fit beside them.
func TestFixedWindowsLendIntoTheNext(t *testing.T) {
	w := windowsOf(t, quota.FixedWindow, 10, quota.Second, 0)
	const now, across = 900_000, 200_000
	next := func() *quota.History {
		return &quota.History{Last: now, Marks: []quota.Mark{{Start: 1_000_000, Count: 8}}}
	}
	if got := w.Room(next(), now+across); got != 2 {
		t.Errorf("room for %d across the border, want 2", got)
	}
	if got := w.Room(next(), now); got != 10 {
		t.Errorf("room for %d on this side, want 10", got)
	}
	if got := w.ReadyToLend(next(), 2, across); got != now {
		t.Errorf("2 can be lent at %d, want at once", got)
	}
	if got := w.ReadyToLend(next(), 3, across); got != 2_000_000 {
		t.Errorf("3 can be lent at %d, want when the next window is over", got)
	}
}

func TestReady(t *testing.T) {
	const first, second = 1_000_000, 2_000_000 // when the windows of the marks are over
	w := windowsOf(t, quota.FixedWindow, 10, quota.Second, 0)
	h := quota.History{Last: 5, Marks: []quota.Mark{{Start: 0, Count: 10}, {Start: first, Count: 3}}}
	for n, want := range map[int64]quota.Instant{1: first, 7: first, 8: second, 10: second} {
		if got := w.Ready(&h, n); got != want {
			t.Errorf("%d tokens are ready at %d, want %d", n, got, want)
		}
	}
	for _, a := range windowed {
		w := windowsOf(t, a, 10, quota.Second, 1)
		h := quota.History{Last: 5, Marks: []quota.Mark{{Start: 0, Count: 4}}}
		if got := w.Ready(&h, 6); got != 5 {
			t.Errorf("%v: the 6 that are left are ready at %d, want at once", a, got)
		}
	}
}

func TestResetAfterOfWindows(t *testing.T) {
	w := windowsOf(t, quota.FixedWindow, 10, quota.Second, 0)
	if got := w.ResetAfter(&quota.History{Last: 5}, 4); got != 0 {
		t.Errorf("nothing stops counting after %d", got)
	}
	h := quota.History{Last: 5, Marks: []quota.Mark{{Start: 0, Count: 1}}}
	for now, want := range map[quota.Instant]quota.Span{5: 999_995, 999_999: 1, 1_000_000: 0, 1_000_001: 0} {
		if got := w.ResetAfter(&h, now); got != want {
			t.Errorf("at %d nothing counts after %d, want %d", now, got, want)
		}
	}
}

// The largest quota that is weighed by the microsecond is.
func TestCounterWeighsByTheMicrosecond(t *testing.T) {
	q := int64(quota.MaxUnits / quota.Second)
	w := windowsOf(t, quota.SlidingWindowCounter, q, quota.Second, 0)
	h := quota.History{Last: 1_000_500, Marks: []quota.Mark{{Start: 0, Count: q}}}
	if got := w.Remaining(&h); got != q*500/1_000_000 {
		t.Errorf("%d remain after half a millisecond, want %d", got, q*500/1_000_000)
	}
	if w.Quota++; w.Remaining(&h) != 1 {
		t.Errorf("%d remain of a larger quota, want the token that was not used", w.Remaining(&h))
	}
}

// Grains begin where they begin also before the first.
func TestGrainsBeforeTheOffset(t *testing.T) {
	w := windowsOf(t, quota.FixedWindow, 1, quota.Second, 0).At(400_000)
	var h quota.History
	if !w.Take(&h, 0, 1).Allowed || h.Marks[0].Start != -600_000 {
		t.Errorf("marks %+v", h.Marks)
	}
	if r := w.Take(&h, 100, 1); r.Allowed || r.RetryAfter != 399_900 {
		t.Errorf("%+v", r)
	}
}

// A change of figures keeps the marks, and adds none.
func TestConvertMakesNoMarks(t *testing.T) {
	w, next := windowsOf(t, quota.FixedWindow, 10, quota.Second, 0), windowsOf(t, quota.FixedWindow, 20, quota.Second,
		0)
	h := quota.History{Last: 5, Marks: []quota.Mark{{Start: 0, Count: 3}, {Start: 1_000_000, Count: 2}}}
	w.Convert(&h, 6, next)
	if want := []quota.Mark{{Start: 0, Count: 3}, {Start: 1_000_000, Count: 2}}; !slices.Equal(h.Marks, want) ||
		h.Last != 6 {
		t.Errorf("%+v at %d, want %+v", h.Marks, h.Last, want)
	}
}

// Tokens above the quota stay, up to the bound of exact sums, and count again in a larger quota. If
// there are too many marks, the earliest marks count as late as the next mark.
func TestSaturate(t *testing.T) {
	byMicrosecond, byMillisecond := int64(100), int64(quota.MaxUnits/int64(quota.Minute)+1)
	const more = quota.MaxUnits
	for _, c := range []struct {
		a           quota.Algorithm
		quota       int64
		marks, want []int64
	}{
		{quota.FixedWindow, 10, []int64{12, 5}, []int64{12, 5}},
		{quota.SlidingWindow, 10, []int64{4, 7, 8}, []int64{4, 7, 8}},
		{quota.SlidingWindow, 10, []int64{5, 3, more + 7}, []int64{5, 3, more}},
		{quota.SlidingLog, 10, []int64{1, 12}, []int64{1, 12}},
		// The counter's products stay exact, so more than the quota may stand there: it fades.
		{quota.SlidingWindowCounter, byMicrosecond, []int64{more, 120},
			[]int64{more / int64(quota.Minute/quota.Millisecond), 120}},
		{quota.SlidingWindowCounter, byMillisecond, []int64{more, 120},
			[]int64{more / int64(quota.Minute/quota.Millisecond), 120}},
	} {
		w := windowsOf(t, c.a, c.quota, quota.Minute, 1)
		var h quota.History
		for i, n := range c.marks {
			h.Marks = append(h.Marks, quota.Mark{Start: quota.Instant(i) * quota.Instant(quota.Minute), Count: n})
		}
		w.Saturate(&h)
		var got []int64
		for _, m := range h.Marks {
			got = append(got, m.Count)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v of %d with %v on its books: %v, want %v", c.a, c.quota, c.marks, got, c.want)
		}
	}
}

func TestSaturateJoinsTheEarliestMarks(t *testing.T) {
	w := windowsOf(t, quota.SlidingLog, 10, quota.Minute, 1)
	var h quota.History
	for i := range int64(quota.MaxMarks + 2) {
		h.Marks = append(h.Marks, quota.Mark{Start: quota.Instant(i), Count: 1})
	}
	if w.Saturate(&h); len(h.Marks) != quota.MaxMarks || h.Marks[0] != (quota.Mark{Start: 2, Count: 3}) {
		t.Errorf("%d marks, the first is %+v", len(h.Marks), h.Marks[0])
	}
}
