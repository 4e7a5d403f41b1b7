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
