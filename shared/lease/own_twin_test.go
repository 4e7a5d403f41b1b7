package lease_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// drawMost draws the largest figures of a limit, from a few a year to many a second.
func drawMost(t *rapid.T, name string) policy.Limit {
	for {
		most, err := policy.NewLimit(
			policy.Counting{}, rapid.Int64Range(1,
				1<<rapid.IntRange(1, 24).Draw(t, name+" size")).Draw(t, name+" quota"),
			rapid.SampledFrom([]quota.Span{quota.Second, quota.Minute, quota.Hour, quota.Day,
				365 * quota.Day}).Draw(t, name+" window"),
			rapid.SampledFrom([]int64{0, 0, 1, 1 << 20}).Draw(t, name+" burst"),
		)
		if err == nil {
			return most
		}
	}
}

// claims draws the ask of a caller of a limit, with figures of its own.
func claims(t *rapid.T, most policy.Limit, version uint64) lease.Ask {
	units := rapid.SampledFrom([]int64{most.Quota, most.Quota / 2, 9, 1}).Draw(t, "quota")
	own := most.For(units, rapid.SampledFrom([]int64{0, 0, most.Params.Burst, 2}).Draw(t, "own burst"))
	return lease.Ask{Params: own.Params, Most: most.Params, Version: version << lease.EpochBits, Cost: 1, Nodes: 2}
}

// While a draft is rolled out, callers bring figures of their own to both versions, and nodes hoard
// their leased tokens. All together never use more than a bucket with the larger of both largest
// figures.
func TestTwinsOfCallersOwnFiguresMintNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limits := [2]policy.Limit{drawMost(rt, "main")}
		limits[1] = limits[0]
		if rapid.Bool().Draw(rt, "differ") {
			limits[1] = drawMost(rt, "draft")
		}
		larger := limits[0].Params
		if larger.SlowerThan(limits[1].Params) {
			larger = limits[1].Params
		}
		window := min(limits[0].Params.Window(), limits[1].Params.Window())
		bound := quota.Params{Num: larger.Num, Den: larger.Den,
			Burst: max(limits[0].Params.Burst, limits[1].Params.Burst)}
		if bound.Burst > quota.MaxUnits/bound.Den {
			rt.Skip("the larger of both is beyond exact arithmetic")
		}
		var pair lease.Twins[lease.Ledger]
		var used quota.State
		var held []holder
		now := quota.Instant(quota.Hour)
		for range rapid.IntRange(1, 60).Draw(rt, "asks") {
			now += quota.Instant(rapid.SampledFrom([]quota.Span{0, 0, 1, quota.Millisecond, window / 50,
				window / 10}).Draw(rt, "later"))
			version := rapid.IntRange(0, 1).Draw(rt, "version")
			ask := claims(rt, limits[version], uint64(1+version))
			other := claims(rt, limits[1-version], uint64(2-version))
			ask.Waiting = rapid.Int64Range(0, 3).Draw(rt, "waiting")
			ask.Keep = rapid.SampledFrom([]int64{0, 1, ask.Params.Burst}).Draw(rt, "keep")
			ask.Nodes = 1
			ask.Deadline = lease.Deadline
			var g lease.Grant
			pair, g, _ = pair.Grant(now, version == 1, ask, other)
			held = append(held,
				holder{now + quota.Instant(lease.Deadline),
					g.Waiting * ask.Cost}, holder{now + quota.Instant(ask.TTL()), g.Keep})
			kept, spree := held[:0], rapid.IntRange(0, 5).Draw(rt, "uses") == 0
			for _, h := range held {
				if h.until <= now || h.tokens == 0 {
					continue
				}
				if !spree {
					kept = append(kept, h)
					continue
				}
				var result quota.Result
				if used, result = bound.Take(used, now, h.tokens); !result.Allowed {
					rt.Fatalf("%+v and %+v together passed %+v", limits[0].Params, limits[1].Params, bound)
				}
			}
			held = kept
		}
	})
}

// A grant of one version counts in the other version's ledger, even if the figures of that ledger's
// last caller have units too small for so large a number.
func TestATwinOfASlowCallerCountsAll(t *testing.T) {
	most, err := policy.NewLimit(policy.Counting{}, 1_000_000, quota.Day, 0)
	if err != nil {
		t.Fatal(err)
	}
	now := quota.Instant(quota.Hour)
	fixed := lease.Ask{Params: most.Params, Version: 1 << lease.EpochBits, Cost: 1, Nodes: 1}
	slow := lease.Ask{Params: most.For(7, 0).Params, Most: most.Params, Version: 2 << lease.EpochBits, Cost: 1,
		Nodes: 1}
	fast := slow
	fast.Params = most.Params
	var pair lease.Twins[lease.Ledger]
	for i, s := range []struct {
		draft         bool
		ask, other    lease.Ask
		waiting, want int64
	}{
		{true, slow, fixed, 1, 1},
		{false, fixed, slow, 999_990, 999_990},
		{true, fast, fixed, 20, 9},
		{true, slow, fixed, 1, 0},
	} {
		s.ask.Waiting = s.waiting
		var g lease.Grant
		if pair, g, _ = pair.Grant(now, s.draft, s.ask, s.other); g.Waiting != s.want {
			t.Errorf("step %d: %d granted, want %d", i, g.Waiting, s.want)
		}
	}
}
