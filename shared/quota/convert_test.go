package quota_test

import (
	"math"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

type marks = []quota.Mark

// The marks after a change of figures, including marks of leases that end later: the exact marks,
// seen at 0.9 s.
func TestConvertExactly(t *testing.T) {
	const now, half = 900_000, 500_000
	second := func(a quota.Algorithm, q int64, k int) quota.Windows { return windowsOf(t, a, q, quota.Second, k) }
	fixed, log := second(quota.FixedWindow, 100, 0), second(quota.SlidingLog, 100, 0)
	halves, counter := second(quota.SlidingWindow, 100, 2), second(quota.SlidingWindowCounter, 100, 0)
	largest := int64(quota.MaxUnits / 1000)
	for _, c := range []struct {
		name         string
		from, to     quota.Windows
		before, want marks
	}{
		{"more than there is room for stays", halves, second(quota.SlidingWindow, 30, 2), marks{{0, 40}, {half, 30}},
			marks{{0, 40}, {half, 30}}},
		{"a grain that began just now is not ahead", second(quota.FixedWindow, 100, 0).At(now), log, marks{{now, 7}},
			marks{{now, 7}}},
		{"a counter counts at once", fixed, counter, marks{{1_000_000, 7}}, marks{{0, 7}}},
		{"a counter keeps a count that can be computed with", second(quota.SlidingWindowCounter, largest, 0),
			second(quota.SlidingWindowCounter, largest-1, 0),
			marks{{0, largest}}, marks{{0, largest}}},
		{"from window to window at the start: the twin counts now", fixed,
			windowsOf(t, quota.FixedWindow, 100, 1500*quota.Millisecond, 0),
			marks{{1_000_000, 7}}, marks{{0, 7}}},
		{"tokens leased into the next window take no room in this window", fixed, second(quota.FixedWindow, 50, 0),
			marks{{0, 100}, {1_000_000, 60}}, marks{{0, 100}, {1_000_000, 60}}},
		{"from a log into two windows, more than there is room for", log, second(quota.FixedWindow, 5, 0),
			marks{{100_000, 4}, {800_000, 3}, {1_200_000, 2}}, marks{{0, 9}, {1_000_000, 2}}},
		{"from a log into two windows", log, fixed, marks{{1_200_000, 7}}, marks{{0, 7}, {1_000_000, 7}}},
		{"from a log into one window", log, fixed, marks{{950_000, 7}}, marks{{0, 7}}},
		{"from a log into grains", log, halves, marks{{1_200_000, 7}}, marks{{1_000_000, 7}}},
		{"from a window into a log as late as can be", fixed, log, marks{{1_000_000, 7}}, marks{{1_999_999, 7}}},
	} {
		h := quota.History{Last: now, Marks: c.before}
		if c.from.Convert(&h, now, c.to); !slices.Equal(h.Marks, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, h.Marks, c.want)
		}
	}
}

func TestOwingExactly(t *testing.T) {
	const now, second = 900_000, quota.Instant(quota.Second)
	for _, c := range []struct {
		a     quota.Algorithm
		until quota.Instant
		n     int64
		want  marks
	}{
		{quota.FixedWindow, now, 10, nil}, {quota.FixedWindow, second, 10, marks{{0, 10}}},
		{quota.FixedWindow, second + 1, 3, marks{{0, 3}, {second, 3}}},
		{quota.SlidingLog, now + 100, 12, marks{{now + 100 - second, 10}}},
		{quota.SlidingLog, now + 2*second, 1, marks{{now, 1}}}, {quota.SlidingLog, now + 1, 0, nil},
		{quota.SlidingWindowCounter, now + 1, math.MaxInt64, marks{{0, 10}}},
	} {
		h := windowsOf(t, c.a, 10, quota.Second, 1).Owing(now, c.until, c.n)
		if !slices.Equal(h.Marks, c.want) || h.Last != now {
			t.Errorf("%v owes until %d: %+v at %d, want %+v", c.a, c.until, h.Marks, h.Last, c.want)
		}
	}
}

// small earns a token in 10 microseconds, and its burst is 5.
var small = quota.Params{Num: 1, Den: 10, Burst: 5}

// The state of a bucket after a change of its figures, to the unit.
func TestCarryExactly(t *testing.T) {
	slower, faster := quota.Params{Num: 1, Den: 20, Burst: 3}, quota.Params{Num: 1, Den: 5, Burst: 3}
	tiny := quota.Params{Num: 1, Den: 3, Burst: 3}
	at7 := func(debt, over int64, gone quota.Instant) quota.State {
		return quota.State{Debt: debt, Last: 7, Over: over, Gone: gone}
	}
	const most = quota.MaxUnits + quota.MaxUnits/4
	for name, c := range map[string]struct {
		s      quota.State
		next   quota.Params
		beyond int64
		want   quota.State
	}{
		"whole tokens":                  {at7(20, 0, 0), slower, 0, at7(40, 0, 0)},
		"a part of a token":             {at7(23, 0, 0), slower, 0, at7(47, 0, 0)},
		"a part is at most a token":     {at7(29, 0, 0), tiny, 0, at7(9, 0, 0)},
		"a whole burst":                 {at7(30, 0, 0), slower, 0, at7(60, 0, 0)},
		"a unit more":                   {at7(31, 0, 0), slower, 0, at7(60, 1, 38)},
		"the bucket may owe a token":    {at7(30, 0, 0), slower, 1, at7(60, 0, 0)},
		"it owes more than that":        {at7(50, 0, 0), slower, 1, at7(80, 1, 57)},
		"over from before":              {at7(50, 2, 0), slower, 0, at7(60, 4, 87)},
		"over that is gone earlier":     {at7(50, 2, 30), slower, 0, at7(60, 4, 57)},
		"over that is gone later":       {at7(50, 2, 90), slower, 0, at7(60, 4, 90)},
		"a faster limit drains by rate": {at7(50, 0, 0), faster, 0, at7(15, 2, 0)},
		"as many tokens as can be":      {at7(50, 2*most, 0), slower, 0, at7(60, most-3, 0)},
	} {
		if got := small.Carry(c.s, c.next, c.beyond); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Tokens that a lowered limit has no room for drain when the debt is paid, at 100, and all at once
// when Gone is reached.
func TestDrainOverExactly(t *testing.T) {
	for name, c := range map[string]struct {
		s           quota.State
		now         quota.Instant
		want        quota.State
		forgettable quota.Instant
	}{
		"the debt is paid now":     {quota.State{Over: 5}, 100, quota.State{Over: 5}, 150},
		"no token is earned":       {quota.State{Over: 5}, 109, quota.State{Over: 5}, 150},
		"a token is earned":        {quota.State{Over: 5}, 110, quota.State{Over: 4}, 150},
		"all tokens are earned":    {quota.State{Over: 5, Gone: 999}, 150, quota.State{}, 150},
		"long after":               {quota.State{Over: 5}, 100_000, quota.State{}, 150},
		"before Gone":              {quota.State{Over: 5, Gone: 121}, 120, quota.State{Over: 3, Gone: 121}, 121},
		"Gone":                     {quota.State{Over: 5, Gone: 121}, 121, quota.State{}, 121},
		"Gone before debt is paid": {quota.State{Over: 5, Gone: 90}, 90, quota.State{}, 100},
	} {
		if got := small.DrainOver(c.s, c.now, 100); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if got := small.ForgetOver(c.s, 100); got != c.forgettable {
			t.Errorf("%s: forgotten at %d, want %d", name, got, c.forgettable)
		}
	}
	if got := small.ForgetOver(quota.State{}, 100); got != 100 {
		t.Errorf("without such tokens: forgotten at %d, want 100", got)
	}
}

func TestBeyondExactly(t *testing.T) {
	for debt, want := range map[int64]int64{0: 0, 40: 0, 50: 0, 51: 1, 80: 3} {
		if got := small.Beyond(quota.State{Debt: debt}); got != want {
			t.Errorf("%d units owed: %d tokens beyond the burst, want %d", debt, got, want)
		}
	}
}
