package quota_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/quota"
)

func own(t testing.TB, units int64, window quota.Span, burst int64) quota.Params {
	t.Helper()
	p, err := quota.NewParams(units, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A caller is charged in one bucket, whatever figures it brings: used tokens stay used, and the
// bucket keeps the rate that was used last until the caller is admitted with another rate.
func TestABucketOfACallersOwnFigures(t *testing.T) {
	large, small := own(t, 600, quota.Minute, 600), own(t, 60, quota.Minute, 60)
	type step struct {
		at      quota.Instant
		figures quota.Params
		cost    int64
		allowed bool
		retry   quota.Span
	}
	for name, steps := range map[string][]step{
		"less than before waits for room at the rate of before": {
			{0, large, 600, true, 0},
			{0, small, 1, false, 54_100_000}, // 541 of 600 tokens at 10 a second.
			{54_099_999, small, 1, false, 1},
			{54_100_000, small, 1, true, 0},
			{54_100_000, small, 1, false, quota.Second},
		},
		"more than before counts the used tokens": {
			{0, small, 60, true, 0},
			{0, large, 541, false, 100_000}, // From now on at the larger rate.
			{100_000, large, 541, true, 0},
		},
		"both in turn share": {
			{0, small, 30, true, 0},
			{0, large, 30, true, 0},
			{0, small, 1, false, 100_000},
			{0, large, 540, true, 0},
			{0, large, 1, false, 100_000},
		},
		"a cost above the burst never passes": {{0, large, 1, true, 0}, {0, small, 61, false, quota.Never}},
		"a clock that stands back refills nothing": {
			{quota.Instant(quota.Minute), small, 60, true, 0},
			{0, small, 1, false, quota.Minute + quota.Second},
			{0, large, 541, false, quota.Minute + 100_000},
		},
		"a look passes, whatever is owed": {{0, large, 600, true, 0}, {0, small, 0, true, 0}},
		"less than before, with a clock that stands back": {
			{quota.Instant(quota.Minute), large, 600, true, 0},
			{0, small, 1, false, quota.Minute + 54_100_000},
		},
	} {
		state, in := quota.State{}, steps[0].figures
		for i, s := range steps {
			var r quota.Result
			state, in, r = s.figures.TakeAs(in, state, s.at, s.cost)
			if r.Allowed != s.allowed || r.RetryAfter != s.retry {
				t.Errorf("%s: step %d: %+v", name, i, r)
			}
		}
	}
}

// figuresUpTo draws figures of a caller within the figures of most, with the same window.
func figuresUpTo(t *rapid.T, units int64, window quota.Span, burst int64) quota.Params {
	p, err := quota.NewParams(rapid.Int64Range(1, units).Draw(t, "quota"), window,
		rapid.Int64Range(1, burst).Draw(t, "burst"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// However a caller changes its figures, all that passes would have passed a bucket of the largest
// figures. All that passes from a moment on with one pair of figures would have passed a full
// bucket of these figures. A caller that waits for the time in the answer passes, and no sooner.
func TestFiguresMintNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units, burst := rapid.Int64Range(1, 1000).Draw(t, "most"), rapid.Int64Range(1, 1000).Draw(t, "largest")
		window := quota.Span(rapid.Int64Range(1, 1000).Draw(t, "window")) * quota.Second
		most, err := quota.NewParams(units, window, burst)
		if err != nil {
			t.Fatal(err)
		}
		now := quota.Instant(quota.Hour)
		var state, all, mine quota.State
		in, last := most, quota.Params{}
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			p := last
			if last.Den == 0 || rapid.Bool().Draw(t, "others") {
				p = figuresUpTo(t, units, window, burst)
			}
			if p != last {
				last, mine = p, quota.State{} // Counted from here on.
			}
			now += quota.Instant(rapid.Int64Range(0, int64(window)/4).Draw(t, "later"))
			cost := rapid.Int64Range(1, p.Burst).Draw(t, "cost")
			next, figures, r := p.TakeAs(in, state, now, cost)
			if r.Allowed {
				var large, own quota.Result
				if all, large = most.Take(all, now, cost); !large.Allowed {
					t.Fatalf("%d of %+v passed, and a bucket of %+v has fewer", cost, p, most)
				}
				if mine, own = p.Take(mine, now, cost); !own.Allowed {
					t.Fatalf("%d of %+v passed, and a bucket of these alone has fewer", cost, p)
				}
			} else {
				soon := now + quota.Instant(r.RetryAfter)
				if _, _, again := p.TakeAs(figures, next, soon, cost); !again.Allowed {
					t.Fatalf("waited %d and was refused: %+v", r.RetryAfter, again)
				}
				if _, _, again := p.TakeAs(figures, next, soon-1, cost); again.Allowed {
					t.Fatalf("would have passed before %d", r.RetryAfter)
				}
			}
			if r.Allowed || figures != in {
				state, in = next, figures
			}
		}
	})
}

// A wait counts from the caller's clock, also where that is behind the bucket's.
func TestOwedCountsFromTheCallersClock(t *testing.T) {
	p := own(t, 600, quota.Minute, 600)
	s := quota.State{Debt: 20 * p.Den, Last: quota.Instant(quota.Minute)} // 2 s at 10 a second.
	for _, c := range []struct {
		at   quota.Instant
		want quota.Span
	}{
		{0, quota.Minute + 2*quota.Second},
		{quota.Instant(quota.Minute), 2 * quota.Second},
		{quota.Instant(quota.Minute + quota.Second), quota.Second},
		{quota.Instant(quota.Hour), 0},
	} {
		if got := p.Owed(s, c.at); got != c.want {
			t.Errorf("at %d: owed for %d, want %d", c.at, got, c.want)
		}
	}
}

// The largest debt that figures can express is restated, and one token more is not.
func TestRestateUpToWhatFiguresCanExpress(t *testing.T) {
	one, slow := own(t, 1, 1, 1), own(t, 1, 1024, 1)
	most := int64(quota.MaxUnits / 1024)
	if s, ok := one.Restate(quota.State{Debt: most}, slow); !ok || s.Debt != most*1024 {
		t.Errorf("%d tokens: %+v, %t", most, s, ok)
	}
	if s, ok := one.Restate(quota.State{Debt: most + 1}, slow); ok || s.Debt != most+1 {
		t.Errorf("%d tokens: %+v, %t", most+1, s, ok)
	}
}
