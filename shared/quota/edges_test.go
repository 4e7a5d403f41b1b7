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

// A debt is at most a whole burst, whatever has been used.
func TestUnitsFor(t *testing.T) {
	p := quota.Params{Num: 1, Den: 7, Burst: 5}
	for n, want := range map[int64]int64{0: 0, 1: 7, 5: 35, 6: 35, 1 << 60: 35} {
		if got := p.UnitsFor(n); got != want {
			t.Errorf("%d tokens: got %d units, want %d", n, got, want)
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
	both := &quota.History{Last: now, Marks: marks{{0, 9}, {1_000_000, 2}}}
	if got := w.Room(both, now+across); got != 1 {
		t.Errorf("room for %d in both windows, want 1", got)
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
	this := &quota.History{Last: now, Marks: marks{{0, 9}}}
	if got := w.ReadyToLend(this, 3, across); got != 1_000_000 {
		t.Errorf("3 can be lent at %d, want when this window is over", got)
	}
	if got := w.ReadyToLend(&quota.History{Last: now, Marks: marks{{0, 9}, {1_000_000, 9}}}, 3, 0); got != 2_000_000 {
		t.Errorf("3 can be lent at %d, want when both windows are over", got)
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

// Tokens above a lowered burst drain when the debt is paid, at the bucket's rate, and at Gone all
// at once.
func TestTokensOverDrain(t *testing.T) {
	p := quota.Params{Num: 3, Den: 10, Burst: 10}
	for _, c := range []struct {
		state quota.State
		now   quota.Instant
		want  quota.State
	}{
		{quota.State{Over: 10}, 100, quota.State{Over: 10}},
		{quota.State{Over: 10}, 103, quota.State{Over: 10}},
		{quota.State{Over: 10}, 104, quota.State{Over: 9}},
		{quota.State{Over: 10}, 120, quota.State{Over: 4}},
		{quota.State{Over: 10}, 134, quota.State{}},
		{quota.State{Over: 10, Gone: 121}, 120, quota.State{Over: 4, Gone: 121}},
		{quota.State{Over: 10, Gone: 120}, 120, quota.State{}},
	} {
		if got := p.DrainOver(c.state, c.now, 100); got != c.want {
			t.Errorf("%+v at %d: %+v, want %+v", c.state, c.now, got, c.want)
		}
	}
}

// A bucket is forgotten when its debt and the tokens above its burst are gone.
func TestForgettableBucket(t *testing.T) {
	p := quota.Params{Num: 3, Den: 10, Burst: 10}
	for _, c := range []struct {
		state quota.State
		want  quota.Instant
	}{
		{quota.State{Last: 100}, 100},
		{quota.State{Debt: 31, Last: 100}, 111},
		{quota.State{Debt: 31, Last: 100, Over: 1}, 115},
		{quota.State{Debt: 31, Last: 100, Over: 3}, 121},
		{quota.State{Debt: 31, Last: 100, Over: 3, Gone: 120}, 120},
		{quota.State{Debt: 31, Last: 100, Over: 3, Gone: 105}, 111},
	} {
		if got := p.Forgettable(c.state); got != c.want {
			t.Errorf("%+v is forgotten at %d, want %d", c.state, got, c.want)
		}
	}
}

// Tokens over are kept for a window of the new limit at most, if the old limit does not earn them
// by then, and for a time that can be computed with.
func TestGoneAfter(t *testing.T) {
	const quarter = quota.MaxUnits / 4
	p := quota.Params{Num: 1, Den: 1, Burst: 100}
	faster, slower := quota.Params{Num: 2, Den: 1, Burst: 10}, quota.Params{Num: 1, Den: 2, Burst: 1}
	for _, c := range []struct {
		next  quota.Params
		state quota.State
		over  int64
		want  quota.Instant
	}{
		{faster, quota.State{Debt: 5, Last: 7}, 1, 12},
		{faster, quota.State{Debt: 6, Last: 7}, 1, 0},
		{slower, quota.State{Over: 1}, quarter/2 - 1, quarter - 2},
		{slower, quota.State{Over: 1}, quarter, 0},
	} {
		if got := p.GoneAfter(c.state, c.next, c.over); got != c.want {
			t.Errorf("%d of %+v are kept by %+v until %d, want %d", c.over, c.state, c.next, got, c.want)
		}
	}
}

// Lent tokens count at their latest possible use. A fixed window counts them also in the current
// window, and a counter counts them at once.
func TestLend(t *testing.T) {
	const now, second = 900_000, quota.Instant(quota.Second)
	for _, c := range []struct {
		algorithm quota.Algorithm
		until     quota.Instant
		want      marks
	}{
		{quota.FixedWindow, 950_000, marks{{0, 3}}},
		{quota.FixedWindow, 1_100_000, marks{{0, 3}, {second, 3}}},
		{quota.SlidingWindow, 950_000, marks{{0, 3}}},
		{quota.SlidingWindow, 1_100_000, marks{{second, 3}}},
		{quota.SlidingWindowCounter, 1_100_000, marks{{0, 3}}},
	} {
		h := quota.History{Last: now}
		if windowsOf(t, c.algorithm, 10, quota.Second, 1).Lend(&h, c.until, 3); !slices.Equal(h.Marks, c.want) {
			t.Errorf("%v until %d: %+v, want %+v", c.algorithm, c.until, h.Marks, c.want)
		}
	}
}

// Clients find a fixed window full at its end, and other windows when nothing counts.
func TestFullAfter(t *testing.T) {
	const second = quota.Instant(quota.Second)
	for _, c := range []struct {
		algorithm quota.Algorithm
		marks     marks
		now       quota.Instant
		want      quota.Span
	}{
		{quota.FixedWindow, nil, 900_000, 0},
		{quota.FixedWindow, marks{{0, 1}, {second, 1}}, 900_000, 100_000},
		{quota.FixedWindow, marks{{0, 1}, {second, 1}}, second + 1, 0},
		{quota.SlidingWindow, nil, 900_000, 0},
		{quota.SlidingWindow, marks{{0, 1}, {second, 1}}, 900_000, 2_099_999},
	} {
		h := quota.History{Last: 900_000, Marks: c.marks}
		if got := windowsOf(t, c.algorithm, 10, quota.Second, 1).FullAfter(&h, c.now); got != c.want {
			t.Errorf("%v with %+v is full %d after %d, want %d", c.algorithm, c.marks, got, c.now, c.want)
		}
	}
}

// Tokens that were lent go back as far as they count: from their own mark, or from the next.
func TestTakeBack(t *testing.T) {
	const second = quota.Instant(quota.Second)
	fixed, sliding := quota.FixedWindow, quota.SlidingWindow
	for _, c := range []struct {
		name      string
		algorithm quota.Algorithm
		now       quota.Instant
		before    marks
		until     quota.Instant
		n, want   int64
		after     marks
	}{
		{"they count no more, later tokens do", sliding, 2_500_000, marks{{2 * second, 3}}, 100_000, 5, 0,
			marks{{2 * second, 3}}},
		{"their mark and the next", sliding, 900_000, marks{{0, 3}, {second, 4}}, 900_000, 5, 5, marks{{second, 2}}},
		{"a mark on each side", fixed, 900_000, marks{{0, 3}, {second, 2}}, 1_100_000, 5, 2, marks{{0, 1}}},
		{"no mark in the next window", fixed, 900_000, marks{{0, 3}}, 1_100_000, 2, 0, marks{{0, 3}}},
		{"the window has just ended", fixed, second, marks{{0, 3}}, 900_000, 2, 0, marks{{0, 3}}},
		{"they count until now", sliding, 1_999_999, marks{{0, 3}, {second, 2}}, 0, 5, 0, marks{{0, 3}, {second, 2}}},
		{"as many as are told of", fixed, 900_000, marks{{0, 3}, {second, 2}}, 1_100_000, 1, 1,
			marks{{0, 2}, {second, 1}}},
		{"few on this side", fixed, 900_000, marks{{0, 1}, {second, 2}}, 1_100_000, 5, 1, marks{{second, 1}}},
		{"on this side alone", fixed, 900_000, marks{{0, 3}, {second, 1}}, 950_000, 2, 2, marks{{0, 1}, {second, 1}}},
		{"a counter lends nothing", quota.SlidingWindowCounter, 900_000, marks{{0, 3}}, 900_000, 2, 0, marks{{0, 3}}},
	} {
		h := quota.History{Last: c.now, Marks: c.before}
		got := windowsOf(t, c.algorithm, 10, quota.Second, 1).TakeBack(&h, c.until, c.n)
		if got != c.want || !slices.Equal(h.Marks, c.after) {
			t.Errorf("%s: took back %d and left %+v, want %d and %+v", c.name, got, h.Marks, c.want, c.after)
		}
	}
}

// Used tokens count now if they would have counted in a later grain, and are not moved otherwise.
func TestCountNow(t *testing.T) {
	const second = quota.Instant(quota.Second)
	for _, c := range []struct {
		algorithm quota.Algorithm
		before    marks
		until     quota.Instant
		want      int64
		after     marks
	}{
		{quota.FixedWindow, marks{{0, 3}, {second, 2}}, 950_000, 0, marks{{0, 3}, {second, 2}}},
		{quota.FixedWindow, marks{{0, 3}, {second, 2}}, 1_100_000, 1, marks{{0, 3}, {second, 1}}},
		{quota.SlidingWindow, marks{{0, 3}, {second, 2}}, 950_000, 0, marks{{0, 3}, {second, 2}}},
		{quota.SlidingWindow, marks{{0, 3}, {second, 2}}, 1_100_000, 1, marks{{0, 4}, {second, 1}}},
		{quota.SlidingWindow, nil, 1_100_000, 0, nil},
		{quota.SlidingWindowCounter, marks{{0, 3}, {second, 2}}, 1_100_000, 0, marks{{0, 3}, {second, 2}}},
	} {
		h := quota.History{Last: 900_000, Marks: c.before}
		got := windowsOf(t, c.algorithm, 10, quota.Second, 1).CountNow(&h, c.until, 1)
		if got != c.want || !slices.Equal(h.Marks, c.after) {
			t.Errorf("%v until %d: moved %d and left %+v, want %d and %+v", c.algorithm, c.until, got, h.Marks, c.want,
				c.after)
		}
	}
}

// A history is forgotten when nothing counts, also under the limits before that reached further.
func TestForgettableHistory(t *testing.T) {
	const second = quota.Instant(quota.Second)
	fixed, sliding := quota.FixedWindow, quota.SlidingWindow
	for _, c := range []struct {
		algorithm quota.Algorithm
		history   quota.History
		want      quota.Instant
	}{
		{fixed, quota.History{Last: 5}, 5},
		{fixed, quota.History{Last: 5, Marks: marks{{0, 3}}}, second},
		{fixed, quota.History{Last: 5, Marks: marks{{0, 3}, {second, 1}}}, 2 * second},
		{fixed, quota.History{Last: 3 * second, Marks: marks{{0, 3}}}, 3 * second},
		{sliding, quota.History{Last: 5, Marks: marks{{0, 3}}}, 1_999_999},
		{sliding, quota.History{Marks: marks{{second, 3}}, Reach: 5 * quota.Second, Until: 4 * second}, 4 * second},
		{sliding, quota.History{Marks: marks{{second, 3}}, Reach: 5 * quota.Second, Until: 9 * second}, 6 * second},
	} {
		if got := windowsOf(t, c.algorithm, 10, quota.Second, 1).Forgettable(&c.history); got != c.want {
			t.Errorf("%v forgets %+v at %d, want %d", c.algorithm, c.history, got, c.want)
		}
	}
}

// A mark of leased tokens whose time has begun counts from the end of its grain, or from now.
func TestConvertMarkThatHasBegun(t *testing.T) {
	const second = quota.Instant(quota.Second)
	next := windowsOf(t, quota.SlidingLog, 20, quota.Second, 0)
	for _, c := range []struct {
		algorithm quota.Algorithm
		now, want quota.Instant
	}{
		{quota.SlidingWindow, second, second},
		{quota.SlidingWindow, second + 200_000, second + 200_000},
		{quota.SlidingLog, second + 200_000, second}, // Its grain is a microsecond.
	} {
		h := quota.History{Last: second / 2, Marks: marks{{second, 3}}}
		windowsOf(t, c.algorithm, 10, quota.Second, 1).Convert(&h, c.now, next)
		if !slices.Equal(h.Marks, marks{{c.want, 3}}) {
			t.Errorf("%v at %d: %+v, want it at %d", c.algorithm, c.now, h.Marks, c.want)
		}
	}
}

// Marks stay for the longest reach and time that any limit has asked for.
func TestKeep(t *testing.T) {
	const second = quota.Instant(quota.Second)
	w := windowsOf(t, quota.SlidingWindow, 10, quota.Second, 1)
	for _, c := range []struct {
		reach quota.Span
		want  quota.History
	}{
		{3 * quota.Second, quota.History{Reach: 5 * quota.Second, Until: 9 * second}},
		{8 * quota.Second, quota.History{Reach: 8 * quota.Second, Until: 10 * second}},
	} {
		h := quota.History{Marks: marks{{second, 1}, {2 * second, 1}}, Reach: 5 * quota.Second, Until: 9 * second}
		if w.Keep(&h, c.reach); h.Reach != c.want.Reach || h.Until != c.want.Until {
			t.Errorf("for %d: kept for %d until %d, want %d until %d", c.reach, h.Reach, h.Until, c.want.Reach,
				c.want.Until)
		}
	}
}

// Marks that are only kept become one mark for each part of the reach, with the sum of their counts
// up to the largest count. Nothing is kept for a reach that is no longer than the window's.
func TestKeptMarksAreJoined(t *testing.T) {
	const second, leaves = quota.Instant(quota.Second), quota.Instant(quota.Second) * 2 // The grain is a microsecond.
	const reach, until = 64 * quota.Second, 64 * second                                 // A part is two seconds.
	w := windowsOf(t, quota.SlidingLog, 10, quota.Second, 0)
	for name, c := range map[string]struct{ before, after quota.History }{
		"two of a part": {
			quota.History{Last: leaves, Marks: marks{{1, 3}, {second, 2}}, Reach: reach, Until: until},
			quota.History{Last: leaves, Marks: marks{{second, 5}}, Reach: reach, Until: until + second},
		},
		"the second one counts": {
			quota.History{Last: leaves, Marks: marks{{1, 3}, {second + 1, 2}}, Reach: reach, Until: until},
			quota.History{Last: leaves, Marks: marks{{1, 3}, {second + 1, 2}}, Reach: reach, Until: until + second + 1},
		},
		"of two parts": {
			quota.History{Last: 9 * second, Marks: marks{{1, 3}, {3 * second, 2}}, Reach: reach, Until: until},
			quota.History{Marks: marks{{1, 3}, {3 * second, 2}}, Reach: reach, Until: until + 3*second},
		},
		"more than can be counted": {
			quota.History{Last: leaves, Marks: marks{{1, quota.MaxUnits}, {2, 9}}, Reach: reach, Until: until},
			quota.History{Last: leaves, Marks: marks{{2, quota.MaxUnits}}, Reach: reach, Until: until + 2},
		},
		"the window's own reach": {
			quota.History{Last: 2, Marks: marks{{1, 3}}, Reach: quota.Second, Until: 1},
			quota.History{Last: 2, Marks: marks{{1, 3}}},
		},
	} {
		h := c.before
		w.Advance(&h, h.Last)
		if !slices.Equal(h.Marks, c.after.Marks) || h.Reach != c.after.Reach || h.Until != c.after.Until {
			t.Errorf("%s: %+v, want %+v", name, h, c.after)
		}
	}
}

// While marks are kept, there is room for two more: the earliest are joined.
func TestKeptMarksLeaveRoom(t *testing.T) {
	w := windowsOf(t, quota.SlidingLog, 10, quota.Minute, 0)
	for count, joined := range map[int]int64{quota.MaxMarks - 2: 1, quota.MaxMarks - 1: 2, quota.MaxMarks: 3} {
		h := quota.History{Last: 1000, Reach: quota.Day, Until: quota.Instant(quota.Day)}
		for i := range count {
			h.Marks = append(h.Marks, quota.Mark{Start: quota.Instant(i), Count: 1})
		}
		w.Advance(&h, h.Last)
		first := quota.Mark{Start: quota.Instant(joined - 1), Count: joined}
		if len(h.Marks) != quota.MaxMarks-2 || h.Marks[0] != first {
			t.Errorf("of %d marks %d are left, and the first is %+v", count, len(h.Marks), h.Marks[0])
		}
	}
}

// A history that is set back is kept for as long as before.
func TestSetBackKeeps(t *testing.T) {
	const second = quota.Instant(quota.Second)
	w := windowsOf(t, quota.FixedWindow, 10, quota.Second, 0)
	h := quota.History{Last: 5 * second, Marks: marks{{5 * second, 1}}, Reach: 4 * quota.Second, Until: 9 * second}
	if !w.SetBack(&h, 2*second) || h.Until != 6*second || h.Marks[0].Start != 2*second {
		t.Errorf("%+v", h)
	}
}

// A mark no longer counts at the instant at which it leaves, though it is kept.
func TestKeptMarksDoNotCount(t *testing.T) {
	w := windowsOf(t, quota.SlidingLog, 5, quota.Second, 0)
	const leaves = quota.Instant(quota.Second)
	h := quota.History{Last: leaves, Marks: marks{{0, 4}, {9, 3}}, Reach: quota.Day, Until: quota.Instant(quota.Day)}
	if w.Remaining(&h) != 2 || w.Owed(&h) != 0 || w.Ready(&h, 5) != 9+leaves {
		t.Errorf("%d left, %d owed, five at %d", w.Remaining(&h), w.Owed(&h), w.Ready(&h, 5))
	}
	for lowered, want := range map[int64]int64{3: 0, 2: 1} {
		w.Quota = lowered
		if got := w.Owed(&h); got != want {
			t.Errorf("of %d: %d owed, want %d", lowered, got, want)
		}
	}
}
