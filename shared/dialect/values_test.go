package dialect_test

import (
	"testing"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/quota"
)

func TestDraft11(t *testing.T) {
	items := []dialect.Item{
		{Name: []byte("burst"), Burst: 100, Window: 60 * quota.Second, Remaining: 50, Reset: 29_000_001},
		{Name: []byte("daily.v2"), Burst: 1000, Window: quota.Day + 1, Remaining: 0, Reset: 0},
	}
	policies, limits := dialect.AppendPolicies(nil, items), dialect.AppendLimits(nil, items)
	if got, want := string(policies), `"burst";q=100;w=60,"daily.v2";q=1000;w=86401`; got != want {
		t.Errorf("RateLimit-Policy: %s, want %s", got, want)
	}
	if got, want := string(limits), `"burst";r=50;t=30,"daily.v2";r=0;t=0`; got != want {
		t.Errorf("RateLimit: %s, want %s", got, want)
	}
}

// Any item reads back by a structured-fields parser that is not ours.
func TestDraft11IsAStructuredField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		it := dialect.Item{
			Name:      []byte(rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,62}`).Draw(t, "name")),
			Burst:     rapid.Int64Range(1, 999_999_999_999_999).Draw(t, "burst"),
			Window:    quota.Span(rapid.Int64Range(1, 1<<52).Draw(t, "window")),
			Remaining: rapid.Int64Range(0, 999_999_999_999_999).Draw(t, "remaining"),
			Reset:     quota.Span(rapid.Int64Range(0, 1<<52).Draw(t, "reset")),
		}
		items := []dialect.Item{it}
		for value, want := range map[string]map[string]int64{
			string(dialect.AppendPolicies(nil, items)): {"q": it.Burst, "w": dialect.Seconds(it.Window)},
			string(dialect.AppendLimits(nil, items)):   {"r": it.Remaining, "t": dialect.Seconds(it.Reset)},
		} {
			list, err := httpsfv.UnmarshalList([]string{value})
			if err != nil || len(list) != 1 {
				t.Fatalf("%s: %v", value, err)
			}
			item := list[0].(httpsfv.Item)
			if item.Value != string(it.Name) {
				t.Fatalf("%s: name %v", value, item.Value)
			}
			for param, n := range want {
				if got, _ := item.Params.Get(param); got != n {
					t.Fatalf("%s: %s=%v, want %d", value, param, got, n)
				}
			}
		}
	})
}

func TestRetryAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wait := quota.Span(rapid.Int64Range(1, int64(quota.MaxWindow)).Draw(t, "wait"))
		ready := quota.Instant(rapid.Int64Range(0, 1<<50).Draw(t, "ready"))
		seed := rapid.Uint32().Draw(t, "seed")
		got := dialect.RetryAfter(wait, ready, seed)
		whole := dialect.Seconds(wait)
		if got < 1 || got < whole || 10*(got-whole) > whole || got-whole > 30 {
			t.Fatalf("a wait of %d became %d s", wait, got)
		}
		// Asking again later about the same refusal never announces a later end.
		sooner := quota.Span(rapid.Int64Range(0, int64(wait)-1).Draw(t, "sooner"))
		if again := dialect.RetryAfter(wait-sooner, ready, seed); again > got {
			t.Fatalf("%d s at first, %d s after %d µs", got, again, sooner)
		}
	})
	// Callers refused together return apart.
	seen := map[int64]bool{}
	for seed := range uint32(100) {
		seen[dialect.RetryAfter(quota.Hour, 0, seed*2654435761)] = true
	}
	if len(seen) < 25 {
		t.Errorf("100 buckets announce only %d different waits", len(seen))
	}
}

// Tokens that come within a second are announced for a second, for any bucket.
func TestRetryAfterOfOneASecond(t *testing.T) {
	for seed := range uint32(1000) {
		for _, wait := range []quota.Span{1, 400_000, 999_999, quota.Second} {
			if got := dialect.RetryAfter(wait, quota.Instant(seed)*777_777, seed*2654435761); got != 1 {
				t.Fatalf("%d µs became %d s", wait, got)
			}
		}
	}
}

func TestResetAt(t *testing.T) {
	for _, c := range []struct {
		wall  int64
		reset quota.Span
		want  int64
	}{{1_000_000_000, 0, 1000}, {1_000_000_001, 0, 1001}, {1_000_500_000, 500_000, 1001}, {1_000_500_000, 500_001,
		1002}} {
		if got := dialect.ResetAt(c.wall, c.reset); got != c.want {
			t.Errorf("at %d in %d: %d, want %d", c.wall, c.reset, got, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	item := func(remaining, burst int64) dialect.Item {
		return dialect.Item{Remaining: remaining, Burst: burst}
	}
	for _, c := range []struct {
		items []dialect.Item
		want  int
	}{
		{nil, -1},
		{[]dialect.Item{item(5, 10)}, 0},
		{[]dialect.Item{item(5, 10), item(40, 100)}, 1},
		{[]dialect.Item{item(5, 10), item(50, 100)}, 0},
		{[]dialect.Item{item(1<<50, 1<<52), item(1<<49, 1<<52)}, 1},
	} {
		if got := dialect.Nearest(c.items); got != c.want {
			t.Errorf("%v: %d, want %d", c.items, got, c.want)
		}
	}
}
