package ratelimitheader_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
)

// However many items there are, both fields and Envoy's older one keep the bound, are as full as
// they can be, keep the refusing item and otherwise those nearest to exhaustion, and lose none that
// fits.
func TestFieldsHaveABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "items")
		items, hits := make([]ratelimitheader.Item, n), make([]int, n)
		for i := range items {
			burst := rapid.Int64Range(1, 1<<52).Draw(t, "burst")
			items[i] = ratelimitheader.Item{
				Name:  []byte(rapid.StringMatching(`[a-z0-9]{1,63}`).Draw(t, "name")),
				Burst: burst, Remaining: rapid.Int64Range(0, burst).Draw(t, "remaining"),
				Window: quota.Span(rapid.Int64Range(1, int64(quota.MaxWindow)).Draw(t, "window")),
				Reset:  quota.Span(rapid.Int64Range(0, int64(quota.MaxWindow)).Draw(t, "reset")),
			}
			hits[i] = i
		}
		before, first := slices.Clone(items), rapid.IntRange(-1, n-1).Draw(t, "refusing")
		fit := ratelimitheader.Fit(items, hits, first)
		for i, at := range hits {
			if string(before[at].Name) != string(items[i].Name) || before[at].Remaining != items[i].Remaining {
				t.Fatalf("item %d is not that of hit %d", i, at)
			}
		}
		var limit, policy []byte
		for _, it := range items[:fit] {
			limit, policy = ratelimitheader.AppendLimit(limit, it), ratelimitheader.AppendPolicy(policy, it)
		}
		envoy := ratelimitheader.AppendEnvoyLimit(nil, 0, items[:fit])
		if most := max(len(limit), len(policy), len(envoy)); most > ratelimitheader.MaxField || fit < n && most < 1400 {
			t.Fatalf("%d of %d items take %d bytes", fit, n, most)
		}
		switch {
		case fit == n:
			if !slices.IsSorted(hits) {
				t.Fatal("all fit, and their order is another")
			}
		case first >= 0 && hits[0] != first:
			t.Fatalf("the refusing item %d is not first: %d", first, hits[0])
		default:
			farthest := items[fit-1]
			for _, it := range items[fit:] {
				nearer := ratelimitheader.Nearest([]ratelimitheader.Item{farthest, it}) == 1
				if nearer && (first < 0 || fit > 1) {
					t.Fatalf("%d of %d is left out for %d of %d", it.Remaining, it.Burst, farthest.Remaining,
						farthest.Burst)
				}
			}
		}
	})
}
