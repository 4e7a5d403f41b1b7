package series_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// A random game: callers send their requests in bursts, and a limit refuses some. The suggestion,
// and the effects of other limits, never contradict the refusals.
func TestASuggestionContradictsNoRefusal(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	for range 30 {
		w := newWorld(t)
		s := w.replica("one")
		now := func() time.Time { return w.now }
		set, err := policies.New(policies.Config{Store: oneSet{}, Now: now}).At(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		quota := set.Set.Policies[0].Limits[0].Quota
		var refused int64
		for range 1 + random.IntN(4) {
			bucket, burst := bucketOf(random), 1+random.Int64N(2*quota)
			use(s, bucket, min(burst, quota))
			if over := burst - quota; over > 0 {
				refused += over
				s.Heard(set, &wire.Decisions{Node: []byte("n"), Counts: []wire.RefusedCount{{Refused: over}},
					Refusals: []wire.Refusal{{CallerCount: wire.CallerCount{Bucket: bucket, Count: over}, Cost: 1}}})
			}
		}
		w.pass(5*time.Minute + 20*time.Second)
		window := time.Duration(set.Set.Policies[0].Limits[0].Window) * time.Microsecond
		d := s.Distribution("api", window, quota, []int64{quota, max(quota/2, 1), 100 * quota})
		what := fmt.Sprintf("%d refused by %d per %s", refused, quota, window)
		if refused > 0 && (d.Suggestion.Limit <= quota || d.Limits[0].Above == 0 || d.Limits[1].Above == 0 ||
			d.Limits[0].Refused == 0 || d.Limits[0].Share == 0) {
			t.Errorf("%s: suggested is %+v, limits catch %+v", what, d.Suggestion, d.Limits)
		}
		if refused == 0 && d.Limits[0].Above > 0 || d.Limits[2].Above > 0 {
			t.Errorf("%s: limits that refuse nothing catch %+v", what, d.Limits)
		}
		read := s.Read(series.Query{By: series.ByPolicy, Outcomes: []series.Outcome{series.Requests, series.Refused},
			Kind: series.Fine, Step: 10 * time.Second, Range: 10 * time.Minute, Most: 10})
		for _, one := range read.Series {
			if one.Outcome == series.Requests && int64(one.Total) < refused {
				t.Errorf("%s: %v requests", what, one.Total)
			}
		}
	}
}

// Reported use of callers counts up to a bound, for the policy that refused.
func TestRefusedCallersAreBelievedUpToABound(t *testing.T) {
	const most = 1 << 53
	for _, c := range []struct {
		count, cost int64
		policy      uint32
		want        float64
	}{
		{count: 3, cost: 200, want: 1100}, {count: 3, cost: 200, policy: 1},
		{count: 1 << 40, cost: 1 << 32, want: most}, {count: 1 << 40, cost: 1 << 23, want: most},
		{count: 1 << 31, cost: 1 << 32, want: most},
	} {
		w := newWorld(t)
		s := w.replica("one")
		now := func() time.Time { return w.now }
		set, err := policies.New(policies.Config{Store: oneSet{}, Now: now}).At(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		bucket := bucketOf(rand.New(rand.NewPCG(3, 4)))
		for range 3 { // Reports over the bound do not add up.
			s.Heard(set, &wire.Decisions{Node: []byte("n"), Refusals: []wire.Refusal{{Cost: c.cost,
				CallerCount: wire.CallerCount{Policy: c.policy, Bucket: bucket, Count: c.count}}}})
			if c.want < most {
				break
			}
		}
		w.pass(5*time.Minute + 20*time.Second)
		got := 0.0
		for _, q := range s.Distribution("api", 5*time.Minute, 100, nil).Quantiles {
			got = max(got, q.Rate)
		}
		if got < c.want*0.98 || got > c.want*1.02 {
			t.Errorf("%d refusals of %d by policy %d: %v tokens, want %v", c.count, c.cost, c.policy, got, c.want)
		}
	}
}

// A window that is longer than the history gets no figure. A bucket that was nearly full gets no
// figure that its caller would have passed.
func TestWhatTheHistoryDoesNotCover(t *testing.T) {
	w := newWorld(t)
	s := w.replica("one")
	use(s, bucketOf(rand.New(rand.NewPCG(8, 9))), 50)
	w.pass(5*time.Minute + 20*time.Second)
	if d := s.Distribution("api", 24*time.Hour, 1000, []int64{1000}); !d.Uncovered || d.Suggestion != nil ||
		len(d.Limits) != 0 || len(d.Quantiles) != 0 {
		t.Errorf("of a day: %+v", d)
	}
	if d := s.Distribution("api", time.Hour, 1000, []int64{1000}); d.Uncovered || d.Suggestion == nil {
		t.Errorf("of an hour: %+v", d)
	}
}
