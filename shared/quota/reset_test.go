package quota_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/quota"
)

// Some go on telling what they were promised, others look, and the bucket is charged meanwhile: what is told never steps back, and is at
// most as old as the longest promise.
func TestResetNeverStepsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const longest = 20
		type teller struct{ told, until quota.Instant }
		var r quota.Reset
		var tellers [3]teller
		var now, last quota.Instant
		full := map[quota.Instant]quota.Instant{} // what was known at each instant
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			for range rapid.IntRange(0, 5).Draw(t, "pause") {
				full[now] = r.FullAt
				now++
			}
			if rapid.IntRange(0, 2).Draw(t, "charge") == 0 {
				r = r.Raise(now + quota.Instant(rapid.IntRange(0, 100).Draw(t, "full in")))
			}
			w := &tellers[rapid.IntRange(0, 2).Draw(t, "who")]
			if now >= w.until {
				w.told, w.until = r.At(now), now
				if rapid.Bool().Draw(t, "promise") {
					r, w.until = r.Promise(now, now+quota.Instant(rapid.IntRange(1, longest).Draw(t, "until")))
				}
			}
			if w.told < last {
				t.Fatalf("at %d somebody is told %d, after %d", now, w.told, last)
			}
			if known := full[now-longest]; w.told < known {
				t.Fatalf("at %d somebody is told %d, though %d was known %d before", now, w.told, known, longest)
			}
			last = w.told
		}
	})
}

func TestPromises(t *testing.T) {
	var r quota.Reset
	for _, step := range []struct {
		now, raise, until quota.Instant // 0: not
		told, promised    quota.Instant
	}{
		{now: 0, raise: 100, told: 100},
		{now: 1, until: 20, told: 100, promised: 20},
		{now: 2, until: 22, told: 100, promised: 22},  // Nothing has changed: for longer.
		{now: 3, raise: 103, told: 100},               // Others still tell 100.
		{now: 4, until: 24, told: 100, promised: 22},  // So nobody may do that for longer.
		{now: 5, until: 10, told: 100, promised: 10},  // For less, as it was asked for.
		{now: 22, until: 42, told: 103, promised: 42}, // That promise is over.
		{now: 23, raise: 90, told: 103},               // Never back.
		{now: 24, until: 30, told: 103, promised: 30}, // And a new one.
	} {
		if step.raise > 0 {
			r = r.Raise(step.raise)
		}
		told, until := r.At(step.now), quota.Instant(0)
		if step.until > 0 {
			r, until = r.Promise(step.now, step.until)
		}
		if told != step.told || until != step.promised || r.At(step.now) != told {
			t.Errorf("at %d: told %d, then %d, promised until %d; want %d until %d", step.now, told, r.At(step.now), until, step.told, step.promised)
		}
	}
}
