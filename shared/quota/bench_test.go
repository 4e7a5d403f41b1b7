package quota_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/quota"
)

// windowsCases are limits of each window algorithm, with the time between requests that use up half
// of their quota.
var windowsCases = []struct {
	algorithm  quota.Algorithm
	quota      int64
	subwindows int
	every      quota.Instant
}{
	{quota.FixedWindow, 1000, 0, 2000}, {quota.SlidingWindow, 1000, 10, 2000},
	{quota.SlidingWindowCounter, 1000, 0, 2000}, {quota.SlidingLog, 100, 0, 20_000},
}

// One operation is the decision on a request that passes. For a leaky bucket it includes the
// request's wait for its turn.
func BenchmarkTake(b *testing.B) {
	p, err := quota.NewParams(1000, quota.Second, 1000)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("token_bucket", func(b *testing.B) { takeTokens(b, p, false) })
	b.Run("leaky_bucket", func(b *testing.B) { takeTokens(b, p, true) })
	for _, c := range windowsCases {
		b.Run(c.algorithm.String(), func(b *testing.B) {
			w, err := quota.NewWindows(c.algorithm, c.quota, quota.Second, c.subwindows)
			if err != nil {
				b.Fatal(err)
			}
			var h quota.History
			passed := 0
			b.ReportAllocs()
			for i := range b.N {
				if w.Take(&h, quota.Instant(i)*c.every, 1).Allowed {
					passed++
				}
			}
			mustBeAll(b, passed)
		})
	}
}

func takeTokens(b *testing.B, p quota.Params, queue bool) {
	var s quota.State
	passed := 0
	b.ReportAllocs()
	for i := range b.N {
		before, now := s, quota.Instant(i)*1000
		var r quota.Result
		if s, r = p.Take(s, now, 1); r.Allowed && (!queue || p.Delay(before, now) == 0) {
			passed++
		}
	}
	mustBeAll(b, passed)
}

// One operation is the decision on a request that is refused, and when it may come again: the
// bucket is empty and time stands still.
func BenchmarkRefuse(b *testing.B) {
	p, err := quota.NewParams(1000, quota.Second, 1000)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("token_bucket", func(b *testing.B) {
		s, refused := p.Empty(5), 0
		b.ReportAllocs()
		for range b.N {
			var r quota.Result
			if s, r = p.Take(s, 5, 1); !r.Allowed && r.RetryAfter == quota.Millisecond {
				refused++
			}
		}
		mustBeAll(b, refused)
	})
	for _, c := range windowsCases {
		b.Run(c.algorithm.String(), func(b *testing.B) {
			w, err := quota.NewWindows(c.algorithm, c.quota, quota.Second, c.subwindows)
			if err != nil {
				b.Fatal(err)
			}
			var h quota.History
			now := quota.Instant(0)
			for range c.quota { // All within half a window.
				if now += c.every / 4; !w.Take(&h, now, 1).Allowed {
					b.Fatal("the quota was used up too early")
				}
			}
			retry, refused := w.Take(&h, now, 1).RetryAfter, 0
			b.ReportAllocs()
			for range b.N {
				if r := w.Take(&h, now, 1); !r.Allowed && r.RetryAfter == retry && retry > 0 {
					refused++
				}
			}
			mustBeAll(b, refused)
		})
	}
}

// mustBeAll fails a benchmark that has measured something else than it says.
func mustBeAll(b *testing.B, count int) {
	b.Helper()
	if count != b.N {
		b.Fatalf("%d of %d decisions were as they have to be", count, b.N)
	}
}
