//go:build !race

package rls_test

import (
	"math/rand/v2"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
)

// The service refuses the same requests as the simulation, and so do policies in shadow and
// candidates. The filter is tested by the same games: test/simulation.
func TestDecidesAsTheSimulation(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	controlplanetest.PlayGames(t, seed, start, func(g *controlplanetest.Game) (refused, tried int) {
		w := begin(t, g.Document)
		w.withPenalties()
		for _, one := range g.Requests {
			w.now = one.At
			entries := "path=/"
			for h := 0; h < len(one.Headers); h += 2 {
				entries += " header:" + one.Headers[h] + "=" + one.Headers[h+1]
			}
			if w.ask(request("d", entries)).OverallCode == rlspb.RateLimitResponse_OVER_LIMIT {
				refused++
			}
		}
		for _, times := range w.would {
			tried += times
		}
		return refused, tried
	})
}
