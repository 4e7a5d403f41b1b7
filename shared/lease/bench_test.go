package lease_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A grant of one token for a request that waits and ten to keep, each time in full.
func BenchmarkGrant(b *testing.B) {
	p, err := quota.NewParams(100_000, quota.Minute, 100_000)
	if err != nil {
		b.Fatal(err)
	}
	sliding, err := quota.NewWindows(quota.SlidingWindow, 100_000, quota.Minute, 10)
	if err != nil {
		b.Fatal(err)
	}
	ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Deadline: lease.Deadline, Keep: 10, Nodes: 3}
	const every = 20 * ms
	b.Run("tokens", func(b *testing.B) {
		var l lease.Ledger
		b.ReportAllocs()
		for i := range b.N {
			var g lease.Grant
			if l, g = l.Grant(quota.Instant(i)*every, ask); g.Waiting != 1 || g.Keep != 10 {
				b.Fatalf("after %d grants: %+v", i, g)
			}
		}
	})
	b.Run("windows", func(b *testing.B) {
		ask.Windows = sliding
		var l lease.WindowLedger
		b.ReportAllocs()
		for i := range b.N {
			var g lease.Grant
			if l, g = l.Grant(quota.Instant(i)*every, ask); g.Waiting != 1 || g.Keep != 10 {
				b.Fatalf("after %d grants: %+v", i, g)
			}
		}
	})
}
