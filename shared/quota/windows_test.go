package quota_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

func TestGoldenWindows(t *testing.T) {
	quotatest.RunWindows(t, func(_ *testing.T, w quota.Windows) quotatest.Decide {
		var h quota.History
		return func(at quota.Instant, cost int64) (bool, int64, quota.Span) {
			r := w.Take(&h, at, cost)
			return r.Allowed, w.Remaining(&h), r.RetryAfter
		}
	})
}

func TestGoldenQueue(t *testing.T) {
	quotatest.RunQueue(t, func(_ *testing.T, p quota.Params) quotatest.Enqueue {
		var s quota.State
		return func(at quota.Instant) (bool, quota.Span, quota.Span) {
			delay := p.Delay(s, at)
			var r quota.Result
			s, r = p.Take(s, at, 1)
			return r.Allowed, delay, r.RetryAfter
		}
	})
}

// States that a node or a control plane can find although no requests can have led to them.
func TestCounterInUnreachableStates(t *testing.T) {
	w := windowsOf(t, quota.SlidingWindowCounter, 100, quota.Minute, 0)
	for _, c := range []struct {
		before, current int64
		at              quota.Instant
		retry           quota.Span
	}{
		{100, 95, 61_000_000, 56_600_000},
		{100, 95, 61_020_000, 56_580_000},
		{100, 2, 61_000_000, 800_000},
	} {
		h := quota.History{Marks: []quota.Mark{{Start: 0, Count: c.before}, {Start: 60_000_000, Count: c.current}}}
		if r := w.Take(&h, c.at, 1); r.Allowed || r.RetryAfter != c.retry {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// admission is the record of one request in a full log.
type admission struct {
	at quota.Instant
	n  int64
}

// fullLog is the independent reference: all that was admitted, and each algorithm's definition over
// it.
type fullLog struct {
	w    quota.Windows
	all  []admission
	last quota.Instant
}

func (l *fullLog) grain(at quota.Instant) int64 {
	return floor(big.NewRat(int64(at)-int64(l.w.Offset), int64(l.w.Grain)))
}

func (l *fullLog) sum(counts func(a admission) bool) (n int64) {
	for _, a := range l.all {
		if counts(a) {
			n += a.n
		}
	}
	return n
}

// inWindow returns the tokens admitted in (at - length, at].
func (l *fullLog) inWindow(at quota.Instant) int64 {
	return l.sum(func(a admission) bool { return a.at > at-quota.Instant(l.w.Length) && a.at <= at })
}

func (l *fullLog) free(at quota.Instant) int64 {
	grain := l.grain(at)
	switch l.w.Algorithm {
	case quota.FixedWindow:
		return l.w.Quota - l.sum(func(a admission) bool { return l.grain(a.at) == grain })
	case quota.SlidingLog:
		return l.w.Quota - l.inWindow(at)
	case quota.SlidingWindow:
		return l.w.Quota - l.sum(func(a admission) bool {
			end := (l.grain(a.at)+1)*int64(l.w.Grain) + int64(l.w.Offset) - 1
			return end > int64(at)-int64(l.w.Length)
		})
	}
	before := l.sum(func(a admission) bool { return l.grain(a.at) == grain-1 })
	current := l.sum(func(a admission) bool { return l.grain(a.at) == grain })
	elapsed := int64(at) - int64(l.w.Offset) - grain*int64(l.w.Length)
	if new(big.Int).Mul(big.NewInt(l.w.Quota), big.NewInt(int64(l.w.Length))).Cmp(big.NewInt(1<<52)) > 0 {
		elapsed -= elapsed % 1000
	}
	weighed := new(big.Rat).Mul(big.NewRat(before, 1), big.NewRat(int64(l.w.Length)-elapsed, int64(l.w.Length)))
	return floor(new(big.Rat).Sub(big.NewRat(l.w.Quota-current, 1), weighed))
}

func (l *fullLog) take(now quota.Instant, n int64) (allowed bool, left int64, retry quota.Span) {
	l.last = max(l.last, now)
	switch {
	case n <= 0:
		allowed = true
	case n > l.w.Quota:
		retry = quota.Never
	case l.free(l.last) >= n:
		l.all = append(l.all, admission{l.last, n})
		allowed = true
	default: // The free tokens only grow while no request takes.
		early, late := quota.Span(0), 3*l.w.Length // not sort.Search: an int may be too small
		for late-early > 1 {
			if half := early + (late-early)/2; l.free(l.last+quota.Instant(half)) >= n {
				late = half
			} else {
				early = half
			}
		}
		retry = late + quota.Span(l.last-now)
	}
	return allowed, max(0, l.free(l.last)), retry
}

// bound fails if more than the quota passed in the window, or the grid's window, that ends now.
func (l *fullLog) bound() error {
	passed, most := l.inWindow(l.last), l.w.Quota
	switch l.w.Algorithm {
	case quota.FixedWindow:
		passed = l.sum(func(a admission) bool { return l.grain(a.at) == l.grain(l.last) })
	case quota.SlidingWindowCounter:
		most = 2*l.w.Quota - 1
	}
	if passed > most {
		return fmt.Errorf("%d passed in a window that ends at %d: the quota is %d", passed, l.last, l.w.Quota)
	}
	return nil
}

var windowed = []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter, quota.SlidingLog}

func windowsOf(t interface{ Fatal(...any) }, a quota.Algorithm, q int64, length quota.Span, k int) quota.Windows {
	w, err := quota.NewWindows(a, q, length, k)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func anyWindows(t *rapid.T) quota.Windows {
	a := rapid.SampledFrom(windowed).Draw(t, "algorithm")
	length := rapid.SampledFrom([]quota.Span{quota.Second, 1_234_000, 7 * quota.Second, quota.Minute, quota.Day,
		quota.MaxWindow}).Draw(t, "length")
	top := int64(quota.MaxLog)
	if a != quota.SlidingLog {
		top = quota.MaxUnits / int64(length/quota.Millisecond)
	}
	q := rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, top)).Draw(t, "quota")
	w := windowsOf(t, a, q, length, rapid.IntRange(1, quota.MaxSubwindows).Draw(t, "subwindows"))
	if a != quota.SlidingLog {
		w = w.At(rapid.Uint64().Draw(t, "offset"))
	}
	return w
}

// anyPause draws a time step: equal, backwards, the edges of grains and windows, and an age of the
// world.
func anyPause(t *rapid.T, w quota.Windows) quota.Instant {
	g, l := int64(w.Grain), int64(w.Length)
	return quota.Instant(rapid.OneOf(
		rapid.SampledFrom([]int64{0, 0, 1, -1, g, g - 1, l, l - 1, l + 1, -g, -l, 2 * l, 50 * 366 * int64(quota.Day)}),
		rapid.Int64Range(0, g), rapid.Int64Range(-l/10, l/3),
	).Draw(t, "pause"))
}

func anyCost(t *rapid.T, w quota.Windows) int64 {
	return rapid.OneOf(rapid.Int64Range(-1, 3), rapid.Int64Range(0, w.Quota), rapid.Just(w.Quota+1)).Draw(t, "cost")
}

func TestWindowsAgreeWithAFullLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWindows(t)
		reference, now := &fullLog{w: w}, quota.Instant(1<<48)
		var h quota.History
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			if next := now + anyPause(t, w); next > 0 && next < 1<<53 {
				now = next
			}
			n := anyCost(t, w)
			allowed, left, retry := reference.take(now, n)
			r := w.Take(&h, now, n)
			if r.Allowed != allowed || w.Remaining(&h) != left || r.RetryAfter != retry {
				t.Fatalf("%+v at %d cost %d: got %+v left %d; the log: %v left %d retry %d", w, now, n, r,
					w.Remaining(&h), allowed, left, retry)
			}
			if err := reference.bound(); err != nil {
				t.Fatal(err)
			}
			if len(h.Marks) > quota.MaxMarks {
				t.Fatalf("%d marks", len(h.Marks))
			}
			if reset := w.ResetAfter(&h, now); reset > 0 {
				later := clone(h)
				if w.Advance(&later, now+quota.Instant(reset)); len(later.Marks) > 0 {
					t.Fatalf("%+v still counts after %d", later.Marks, reset)
				}
			}
		}
	})
}

func clone(h quota.History) quota.History {
	return quota.History{Last: h.Last, Marks: slices.Clone(h.Marks)}
}

// A promised wait is kept: a refused call passes then, and not a microsecond earlier.
func TestRetryAfterOfWindowsIsHonest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, now := anyWindows(t), quota.Instant(1<<48)
		var h quota.History
		for range rapid.IntRange(1, 30).Draw(t, "calls") {
			now += max(0, anyPause(t, w)) % (1 << 49)
			n := rapid.Int64Range(1, w.Quota).Draw(t, "cost")
			asked := now - quota.Instant(rapid.Int64Range(0, 1000).Draw(t, "behind"))
			r := w.Take(&h, asked, n)
			if r.Allowed {
				continue
			}
			early, late := clone(h), clone(h)
			if !w.Take(&late, asked+quota.Instant(r.RetryAfter), n).Allowed {
				t.Fatalf("%+v: refused after the promised wait of %d", w, r.RetryAfter)
			}
			if w.Take(&early, asked+quota.Instant(r.RetryAfter)-1, n).Allowed {
				t.Fatalf("%+v: passed a microsecond before the promised wait of %d", w, r.RetryAfter)
			}
		}
	})
}

// A changed limit keeps admitted tokens and mints nothing.
func TestConvertWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, next, now := anyWindows(t), anyWindows(t), quota.Instant(1<<48)
		if next.Algorithm == quota.SlidingWindowCounter {
			next = w // An estimate weighs what another algorithm counts whole; its own figures must come through alike.
		}
		reference := &fullLog{w: w}
		var h quota.History
		for range rapid.IntRange(0, 30).Draw(t, "calls") {
			now += max(0, anyPause(t, w)) % (1 << 44)
			n := rapid.Int64Range(1, w.Quota).Draw(t, "cost")
			if w.Take(&h, now, n).Allowed {
				reference.all = append(reference.all, admission{now, n})
			}
		}
		left := w.Remaining(&h)
		w.Convert(&h, now, next)
		if next == w {
			if w.Remaining(&h) != left {
				t.Fatalf("%+v: %d became %d without a change", w, left, w.Remaining(&h))
			}
			return
		}
		after := &fullLog{w: next}
		used := reference.sum(func(a admission) bool {
			known := a.at > now-quota.Instant(w.Length)
			if w.Algorithm == quota.FixedWindow {
				known = reference.grain(a.at) == reference.grain(now)
			}
			if next.Algorithm == quota.FixedWindow {
				return known && after.grain(a.at) == after.grain(now)
			}
			return known && a.at > now-quota.Instant(next.Length)
		})
		if got := next.Remaining(&h); got > max(0, next.Quota-used) {
			t.Fatalf("%+v to %+v: %d remain of %d after %d", w, next, got, next.Quota, used)
		}
	})
}

// Tokens above a lowered quota fade from their own count, not from the new quota.
func TestConvertCounter(t *testing.T) {
	w, lower := windowsOf(t, quota.SlidingWindowCounter, 100, quota.Minute, 0), windowsOf(t, quota.SlidingWindowCounter,
		50, quota.Minute, 0)
	var h quota.History
	w.Take(&h, 0, 100)
	w.Convert(&h, 89_000_000, lower)
	if got := lower.Take(&h, 89_000_000, 1); got.Allowed || got.RetryAfter != 1_600_000 {
		t.Errorf("a quota lowered to 50 with an estimate of 51.7: %+v", got)
	}
}

// A clock that was ahead by a grain or more takes its marks back with it, in whole grains. A clock
// that was ahead by less stands still.
func TestSetBack(t *testing.T) {
	const second = quota.Instant(quota.Second)
	for _, c := range []struct {
		name       string
		algorithm  quota.Algorithm
		subwindows int
		used, now  quota.Instant
		want       bool
		marks      []quota.Mark
	}{
		{"a fixed window later", quota.FixedWindow, 0, 130 * second, 50 * second, true, []quota.Mark{{0, 3}}},
		{"a whole window ahead", quota.FixedWindow, 0, 110 * second, 50 * second, true, []quota.Mark{{0, 3}}},
		{"less than a window", quota.FixedWindow, 0, 110*second - 1, 50 * second, false,
			[]quota.Mark{{60 * second, 3}}},
		{"subwindows", quota.SlidingWindow, 6, 95 * second, 12 * second, true, []quota.Mark{{10 * second, 3}}},
		{"before time 0", quota.SlidingWindow, 6, 95 * second, -5 * second, true, []quota.Mark{{-10 * second, 3}}},
	} {
		w := windowsOf(t, c.algorithm, 10, quota.Minute, c.subwindows)
		var h quota.History
		w.Take(&h, c.used, 3)
		changed := w.SetBack(&h, c.now)
		last := c.used
		if c.want {
			last = c.now
		}
		if changed != c.want || h.Last != last || !slices.Equal(h.Marks, c.marks) {
			t.Errorf("%s: %t, %+v", c.name, changed, h)
		}
	}
}

// Of fixed windows one counts at a time, and of sliding ones all marks do.
func TestAdmitted(t *testing.T) {
	h := quota.History{Marks: []quota.Mark{{0, 3}, {quota.Instant(quota.Minute), 5},
		{quota.Instant(2 * quota.Minute), 2}}}
	for algorithm, want := range map[quota.Algorithm]int64{
		quota.FixedWindow: 5, quota.SlidingWindow: 10, quota.SlidingWindowCounter: 10, quota.SlidingLog: 10,
	} {
		w := windowsOf(t, algorithm, 10, quota.Minute, 6)
		if got := w.Admitted(&h); got != want {
			t.Errorf("%v: %d tokens count at once, want %d", algorithm, got, want)
		}
	}
}

// A leased fixed window is full when it ends, and stays so.
func TestFullAfterOfAFixedWindow(t *testing.T) {
	w := windowsOf(t, quota.FixedWindow, 10, quota.Minute, 0)
	var h quota.History
	w.Take(&h, quota.Instant(50*quota.Second), 3)
	for at, want := range map[quota.Span]quota.Span{
		50 * quota.Second: 10 * quota.Second, 59 * quota.Second: quota.Second,
		quota.Minute: 0, 61 * quota.Second: 0, quota.Hour: 0,
	} {
		if got := w.FullAfter(&h, quota.Instant(at)); got != want {
			t.Errorf("at %d: full after %d, want %d", at, got, want)
		}
	}
}

func TestOwing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, now := anyWindows(t), quota.Instant(1<<48)
		until := now + quota.Instant(rapid.Int64Range(0, int64(w.Length)).Draw(t, "until"))
		h := w.Owing(now, until, w.Quota)
		if until == now {
			if len(h.Marks) != 0 {
				t.Fatalf("%+v owes a past count", h)
			}
			return
		}
		if r := w.Take(&h, now, 1); r.Allowed {
			t.Fatalf("%+v gave a token at once", w)
		}
		if w.Algorithm == quota.SlidingWindowCounter {
			return // It fades from the next window on.
		}
		if r := w.Take(&h, until-1, 1); r.Allowed {
			t.Fatalf("%+v gave a token before %d", w, until)
		}
	})
}

// A long run with little state: every decision against the full log's, and the bound after every
// admission.
func TestWindowsForLong(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, a := range windowed {
		for range 100 {
			w := windowsOf(t, a, 1+r.Int64N(6), quota.Second*quota.Span(1+r.Int64N(3)), 1+r.IntN(8))
			reference, now := &fullLog{w: w}, quota.Instant(1<<48)
			var h quota.History
			for i := range 2500 {
				now += quota.Instant(r.Int64N(int64(w.Length)/3) - int64(w.Length)/30)
				n := 1 + r.Int64N(w.Quota)
				reference.last = max(reference.last, now)
				want := reference.free(reference.last) >= n
				if want {
					reference.all = append(reference.all, admission{reference.last, n})
				}
				if got := w.Take(&h, now, n); got.Allowed != want {
					t.Fatalf("%+v, call %d at %d: cost %d passed: %v, the log says %v", w, i, now, n, got.Allowed, want)
				}
				if err := reference.bound(); err != nil {
					t.Fatalf("%+v, call %d: %v", w, i, err)
				}
				for len(reference.all) > 0 && reference.all[0].at < reference.last-3*quota.Instant(w.Length) {
					reference.all = reference.all[1:]
				}
			}
		}
	}
}

func TestNewWindowsRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		a      quota.Algorithm
		quota  int64
		length quota.Span
		k      int
	}{
		{"no quota", quota.FixedWindow, 0, quota.Second, 0},
		{"a quota beyond exact arithmetic", quota.FixedWindow, quota.MaxUnits + 1, quota.Second, 0},
		{"a window under a second", quota.FixedWindow, 1, quota.Second - 1, 0},
		{"a window over 366 days", quota.FixedWindow, 1, quota.MaxWindow + 1, 0},
		{"a fraction of a millisecond", quota.SlidingWindowCounter, 1, quota.Second + 1, 0},
		{"no subwindow", quota.SlidingWindow, 1, quota.Second, 0},
		{"too many subwindows", quota.SlidingWindow, 1, quota.Second, 61},
		{"a log too long", quota.SlidingLog, quota.MaxLog + 1, quota.Second, 0},
		{"products beyond exact arithmetic", quota.SlidingWindowCounter, quota.MaxUnits / 1000, 2 * quota.Second, 0},
		{"tokens", quota.TokenBucket, 1, quota.Second, 0},
	} {
		if w, err := quota.NewWindows(c.a, c.quota, c.length, c.k); err == nil {
			t.Errorf("%s: accepted as %+v", c.name, w)
		}
	}
}
