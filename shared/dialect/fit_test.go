package dialect_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/quota"
)

// However many items there are, both fields and Envoy's older one keep the bound, are as full as
// they can be, keep the refusing item and otherwise those nearest to exhaustion, and lose none that
// fits.
func TestFieldsHaveABound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "items")
		items := make([]dialect.Item, n)
		for i := range items {
			burst := rapid.Int64Range(1, 1<<52).Draw(t, "burst")
			items[i] = dialect.Item{
				Name:  []byte(rapid.StringMatching(`[a-z0-9]{1,63}`).Draw(t, "name")),
				Burst: burst, Remaining: rapid.Int64Range(0, burst).Draw(t, "remaining"),
				Window: quota.Span(rapid.Int64Range(1, int64(quota.MaxWindow)).Draw(t, "window")),
				Reset:  quota.Span(rapid.Int64Range(0, int64(quota.MaxWindow)).Draw(t, "reset")),
			}
			items[i].Policy = uint32(i)
		}
		first := rapid.IntRange(-1, n-1).Draw(t, "refusing")
		fit := dialect.Fit(items, first)
		limit, policy := dialect.AppendLimits(nil, items[:fit]), dialect.AppendPolicies(nil, items[:fit])
		envoy := dialect.AppendEnvoyLimit(nil, 0, items[:fit])
		if most := max(len(limit), len(policy), len(envoy)); most > dialect.MaxField || fit < n && most < 1400 {
			t.Fatalf("%d of %d items take %d bytes", fit, n, most)
		}
		switch {
		case fit == n:
			if !slices.IsSortedFunc(items, func(a, b dialect.Item) int { return int(a.Policy) - int(b.Policy) }) {
				t.Fatal("all fit, and their order has changed")
			}
		case first >= 0 && int(items[0].Policy) != first:
			t.Fatalf("the refusing item %d is not first: %d", first, items[0].Policy)
		default:
			farthest := items[fit-1]
			for _, it := range items[fit:] {
				nearer := dialect.Nearest([]dialect.Item{farthest, it}) == 1
				if nearer && (first < 0 || fit > 1) {
					t.Fatalf("%d of %d is left out for %d of %d", it.Remaining, it.Burst, farthest.Remaining,
						farthest.Burst)
				}
			}
		}
	})
}
