package vtimetest_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/vtimetest"
)

// Events come in the order of their instants, events of one instant in the order in which they were
// added, and no event before its time.
func TestEventsComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q vtimetest.Queue[int64]
		type event struct {
			at     int64
			number int
		}
		var want, got []event
		for i, at := range rapid.SliceOf(rapid.Int64Range(0, 5)).Draw(t, "instants") {
			want = append(want, event{at, i})
			q.Add(at, func() { got = append(got, event{at, i}) })
		}
		slices.SortStableFunc(want, func(a, b event) int { return int(a.at - b.at) })
		for now := range int64(6) {
			for e, ok := q.Next(now); ok; e, ok = q.Next(now) {
				if e.At != now {
					t.Fatalf("at %d comes an event of %d", now, e.At)
				}
				e.Fire()
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// The order also holds for events that are added after earlier events have come.
func TestEventsAddedBetweenOthersComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q vtimetest.Queue[int64]
		var waiting []int64 // By the order of adding; an event's number is its place.
		var came []bool
		fired := -1
		for now, steps := int64(0), rapid.IntRange(1, 60).Draw(t, "steps"); steps > 0; steps-- {
			if ahead := rapid.Int64Range(-1, 9).Draw(t, "ahead"); ahead >= 0 {
				number := len(waiting)
				waiting, came = append(waiting, now+ahead), append(came, false)
				q.Add(now+ahead, func() { fired = number })
				continue
			}
			first := -1
			for i, at := range waiting {
				if !came[i] && at <= now+3 && (first < 0 || at < waiting[first]) {
					first = i
				}
			}
			e, ok := q.Next(now + 3)
			if ok != (first >= 0) {
				t.Fatalf("an event until %d: %v, want number %d of %v", now+3, ok, first, waiting)
			}
			if !ok {
				now += 3
				continue
			}
			if e.Fire(); fired != first || e.At != waiting[first] {
				t.Fatalf("event %d at %d, want event %d of %v", fired, e.At, first, waiting)
			}
			now, came[first] = e.At, true
		}
	})
}
