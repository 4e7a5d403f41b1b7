package quota_test

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

func TestGoldenVectors(t *testing.T) {
	quotatest.RunTokenBucket(t, func(t *testing.T, p quota.Params) quotatest.Decide {
		var s quota.State
		return func(at quota.Instant, cost int64) (bool, int64, quota.Span) {
			var r quota.Result
			s, r = p.Take(s, at, cost)
			return r.Allowed, p.Remaining(s), r.RetryAfter
		}
	})
}

// exact is the independent reference: tokens as a rational number.
type exact struct {
	rate, level, burst *big.Rat
	last               quota.Instant
}

func newExact(q int64, window quota.Span, burst int64) *exact {
	b := new(big.Rat).SetInt64(burst)
	return &exact{rate: big.NewRat(q, int64(window)), burst: b, level: new(big.Rat).Set(b)}
}

func (e *exact) take(now quota.Instant, n int64) (allowed bool, left int64, retry quota.Span) {
	eff := max(now, e.last)
	e.level.Add(e.level, new(big.Rat).Mul(e.rate, new(big.Rat).SetInt64(int64(eff-e.last))))
	if e.level.Cmp(e.burst) > 0 {
		e.level.Set(e.burst)
	}
	e.last = eff
	cost := new(big.Rat).SetInt64(n)
	switch {
	case cost.Cmp(e.burst) > 0:
		retry = quota.Never
	case cost.Cmp(e.level) > 0:
		wait := new(big.Rat).Quo(new(big.Rat).Sub(cost, e.level), e.rate)
		retry = quota.Span(ceil(wait)) + quota.Span(eff-now)
	default:
		e.level.Sub(e.level, cost)
		allowed = true
	}
	return allowed, floor(e.level), retry
}

func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
func ceil(r *big.Rat) int64  { return -floor(new(big.Rat).Neg(r)) }

// anyLimit draws figures from the smallest to the largest that validation lets through.
func anyLimit(t *rapid.T) (q int64, window quota.Span, burst int64, p quota.Params) {
	window = quota.Span(rapid.OneOf(
		rapid.SampledFrom([]int64{1, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, int64(quota.MaxWindow)}),
		rapid.Int64Range(1, int64(quota.MaxWindow)),
	).Draw(t, "window"))
	q = rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 10_000_000)).Draw(t, "quota")
	smallest, err := quota.NewParams(q, window, 1)
	if err != nil {
		t.Skip("beyond exact arithmetic")
	}
	burst = rapid.OneOf(
		rapid.Int64Range(1, min(20, quota.MaxUnits/smallest.Den)),
		rapid.Int64Range(1, quota.MaxUnits/smallest.Den),
	).Draw(t, "burst")
	if p, err = quota.NewParams(q, window, burst); err != nil {
		t.Fatalf("NewParams(%d, %d, %d): %v", q, window, burst, err)
	}
	return q, window, burst, p
}

// anyStep draws a time step: equal, backwards, a microsecond around a token, or an age of the
// world.
func anyStep(t *rapid.T, p quota.Params) int64 {
	token := p.Den/p.Num + 1
	return rapid.OneOf(
		rapid.SampledFrom([]int64{0, 1, -1, token, token - 1, -token, 100 * 366 * int64(quota.Day)}),
		rapid.Int64Range(0, 3*token),
		rapid.Int64Range(-token, 10*token),
	).Draw(t, "step")
}

func TestTakeAgreesWithExactArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, window, burst, p := anyLimit(t)
		reference := newExact(q, window, burst)
		var s quota.State
		now := quota.Instant(0)
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			if next := int64(now) + anyStep(t, p); next >= 0 && next < 1<<53 {
				now = quota.Instant(next)
			}
			n := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, burst), rapid.Just(burst+1)).Draw(t, "cost")
			wantAllowed, wantLeft, wantRetry := reference.take(now, n)
			var r quota.Result
			s, r = p.Take(s, now, n)
			if r.Allowed != wantAllowed || p.Remaining(s) != wantLeft || r.RetryAfter != wantRetry {
				t.Fatalf("at %d cost %d: got %+v left %d; exact: %v left %d retry %d",
					now, n, r, p.Remaining(s), wantAllowed, wantLeft, wantRetry)
			}
		}
	})
}

// At now+RetryAfter the same call passes, a microsecond earlier it does not.
func TestRetryAfterIsHonest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _, burst, p := anyLimit(t)
		n := rapid.Int64Range(1, burst).Draw(t, "cost")
		s := quota.State{Debt: rapid.Int64Range(burst*p.Den-n*p.Den+1, burst*p.Den).Draw(t, "debt"), Last: 1000}
		now := s.Last + quota.Instant(rapid.Int64Range(-500, 0).Draw(t, "behind"))
		_, r := p.Take(s, now, n)
		if r.Allowed {
			t.Fatal("the bucket was meant to be short")
		}
		if _, late := p.Take(s, now+quota.Instant(r.RetryAfter), n); !late.Allowed {
			t.Fatalf("refused again after the promised wait of %d", r.RetryAfter)
		}
		if _, early := p.Take(s, now+quota.Instant(r.RetryAfter)-1, n); early.Allowed {
			t.Fatalf("passed a microsecond before the promised wait of %d", r.RetryAfter)
		}
	})
}

// In every interval (s, t] at most burst + rate·(t-s) pass: one pass over the timeline with an
// exact level suffices, because an interval that breaks the bound has a start after which the
// backlog over the rate line exceeds the burst. Time is the bucket's own: where the caller's clock
// steps back, it stands still.
func TestIntervalBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, window, burst, p := anyLimit(t)
		rate := big.NewRat(q, int64(window))
		limit := new(big.Rat).SetInt64(burst)
		backlog, last, latest := new(big.Rat), quota.Instant(0), quota.Instant(0)
		var s quota.State
		now := quota.Instant(0)
		for range 60 {
			if next := int64(now) + anyStep(t, p); next >= 0 && next < 1<<53 {
				now = quota.Instant(next)
			}
			n := rapid.Int64Range(1, burst).Draw(t, "cost")
			var r quota.Result
			s, r = p.Take(s, now, n)
			latest = max(latest, now)
			if !r.Allowed {
				continue
			}
			backlog.Sub(backlog, new(big.Rat).Mul(rate, new(big.Rat).SetInt64(int64(latest-last))))
			if backlog.Sign() < 0 {
				backlog.SetInt64(0)
			}
			last = latest
			backlog.Add(backlog, new(big.Rat).SetInt64(n))
			if backlog.Cmp(limit) > 0 {
				t.Fatalf("an interval ending at %d admitted more than burst %d + rate·t", now, burst)
			}
		}
	})
}

func TestConvertKeepsConsumption(t *testing.T) {
	p := must(t, 100, quota.Minute, 100)
	used40, _ := p.Take(quota.State{}, 0, 40)
	for _, c := range []struct {
		name  string
		next  quota.Params
		after quota.Span
		want  int64
	}{
		{"grow", must(t, 200, quota.Minute, 200), 0, 160},
		{"shrink", must(t, 50, quota.Minute, 50), 0, 10},
		{"shrink below the used tokens", must(t, 30, quota.Minute, 30), 0, 0},
		{"other unit", must(t, 100, quota.Hour, 100), 0, 60},
		{"time since the last call has earned at the old rate", must(t, 100, quota.Hour, 100), 24 * quota.Second, 100},
		{"or at the new one if that is faster", must(t, 1000, quota.Minute, 100), 600 * quota.Millisecond, 70},
		{"or the old use leaves the new burst full", must(t, 10, 10*quota.Second, 10), 10 * quota.Second, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.next.Remaining(p.Convert(used40, quota.Instant(c.after), c.next, 0)); got != c.want {
				t.Errorf("remaining %d, want %d", got, c.want)
			}
		})
	}
	// There and back mints nothing.
	rapid.Check(t, func(t *rapid.T) {
		_, _, burst, p := anyLimit(t)
		_, _, _, q := anyLimit(t)
		s := quota.State{Debt: rapid.Int64Range(0, burst*p.Den).Draw(t, "debt"), Last: 7}
		back := q.Convert(p.Convert(s, 7, q, 0), 7, p, 0)
		if back.Debt < s.Debt {
			t.Fatalf("debt %d came back as %d", s.Debt, back.Debt)
		}
	})
}

func TestNewParamsRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		quota  int64
		window quota.Span
		burst  int64
	}{
		{"no quota", 0, quota.Second, 1},
		{"negative quota", -1, quota.Second, 1},
		{"no burst", 1, quota.Second, 0},
		{"no window", 1, 0, 1},
		{"window over 366 days", 1, quota.MaxWindow + 1, 1},
		{"units beyond exact arithmetic", 1, quota.MaxWindow, math.MaxInt64},
		{"prime quota over a long window", 4999, quota.MaxWindow, 4999},
	} {
		if p, err := quota.NewParams(c.quota, c.window, c.burst); err == nil {
			t.Errorf("%s: accepted as %+v", c.name, p)
		}
	}
}

func TestResetAfterAndEmpty(t *testing.T) {
	p := must(t, 10, quota.Second, 20)
	if got := p.ResetAfter(p.Empty(5), 5); got != 2*quota.Second {
		t.Errorf("an empty bucket is full after %d, want 2s", got)
	}
	if got := p.ResetAfter(quota.State{}, 5); got != 0 {
		t.Errorf("a full bucket is full after %d", got)
	}
	if p.Window() != 2*quota.Second {
		t.Errorf("window %d", p.Window())
	}
}

func must(t *testing.T, q int64, window quota.Span, burst int64) quota.Params {
	t.Helper()
	p, err := quota.NewParams(q, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
