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
