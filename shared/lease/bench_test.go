package lease_test

import (
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// One operation is a grant of one token for a request that waits and ten to keep, each time in
// full.
func BenchmarkGrant(b *testing.B) {
	p, err := quota.NewParams(100_000, quota.Minute, 100_000)
	if err != nil {
		b.Fatal(err)
	}
	sliding, err := quota.NewWindows(quota.SlidingWindow, 100_000, quota.Minute, 10)
	if err != nil {
		b.Fatal(err)
	}
	var tokens lease.Ledger
	var windows lease.WindowLedger
	for _, c := range []struct {
		name  string
		grant func(now quota.Instant, ask lease.Ask) (g lease.Grant)
	}{
		{"tokens", func(now quota.Instant, ask lease.Ask) (g lease.Grant) {
			tokens, g = tokens.Grant(now, ask)
			return g
		}},
		{"windows", func(now quota.Instant, ask lease.Ask) (g lease.Grant) {
			ask.Windows = sliding
			windows, g = windows.Grant(now, ask)
			return g
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Deadline: lease.Deadline, Keep: 10, Nodes: 3}
			tokens, windows = lease.Ledger{}, lease.WindowLedger{}
			b.ReportAllocs()
			for i := range b.N {
				if g := c.grant(quota.Instant(i)*20*ms, ask); g.Waiting != 1 || g.Keep != 10 {
					b.Fatalf("after %d grants: %+v", i, g)
				}
			}
		})
	}
}
