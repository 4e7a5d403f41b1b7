package simulation

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/quota"
)

// The filter refuses the same requests as the simulation, and policies in shadow and candidates
// would refuse the same. The gRPC rate limit service is tested by the same games.
func TestDecidesAsTheSimulation(t *testing.T) {
	seed := chooseTrialSeed()
	t.Logf("seed %d", seed)
	controlplanetest.PlayGames(t, seed, time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		func(g *controlplanetest.Game) (refused, tried int) {
			now := g.Requests[0].At
			instant := func() quota.Instant { return quota.Instant(now.UnixMicro()) }
			store := &controlplanetest.Store{Now: instant}
			plane := controlplanetest.New(store, 1, 1, func() time.Time { return now }, func() float64 { return 0 })
			snapshot, _, err := plane.Put(0, []byte(g.Document))
			if err != nil {
				t.Fatalf("%s: %v", g.Document, err)
			}
			var calls []func()
			node := filtertest.Start(filtertest.Options{
				Name: "node", Boot: 1, Random: seed, Workers: 1, Now: instant,
				Call: func(_ int, body []byte, _ quota.Span, done func(int, []byte)) error {
					calls = append(calls, func() { done(plane.Lease(0, body)) })
					return nil
				},
				Decided: func(d filtertest.Decision) {
					if !d.Allowed && len(d.Hits) > 0 { // A decision without hits has no limit.
						refused++
					}
				},
			})
			if err := node.Apply(0, snapshot, 1); err != nil {
				t.Fatal(err)
			}
			for i, one := range g.Requests {
				now = one.At
				node.Request(0, uint32(i)+1, "/", one.Headers...)
				for range 5 { // Calls that answers and ticks bring about leave by the next.
					for len(calls) > 0 {
						next := calls[0]
						calls = calls[1:]
						next()
					}
					now = now.Add(10 * time.Millisecond)
					node.Tick(0)
				}
			}
			return refused, int(node.Tried(false).Refused + node.Tried(true).Refused)
		})
}
