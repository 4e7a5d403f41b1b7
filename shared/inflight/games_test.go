package inflight_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/inflight/inflighttest"
	"github.com/weir-proxy/weir/shared/quota"
)

var games = flag.Int("games", 5_000, "how many random games are played")

func play(seed, n uint64, bug inflighttest.Bug) (kept, free bool) {
	g := inflighttest.Game{Now: quota.Instant(quota.Hour), Steps: 150, Bug: bug}
	return g.Play(&inflighttest.Arithmetic{Doubtless: bug == inflighttest.Doubtless}, seed, n)
}

// Nodes claim permits by messages that are lost, repeated and late, and crash. No more requests are
// in flight than the limit allows, except requests of nodes that were cut off for longer than a
// lease. At rest no permit is held.
func TestPermitsOverNodes(t *testing.T) {
	seed := rand.Uint64()
	for n := range uint64(*games) {
		if kept, free := play(seed, n, inflighttest.None); !kept || !free {
			t.Fatalf("seed %d: game %d: the bound is kept: %v, all is free at rest: %v", seed, n, kept, free)
		}
	}
}

// Bugs that would break the bound are found.
func TestPlantedBugsAreFound(t *testing.T) {
	for bug := inflighttest.None + 1; bug < inflighttest.Bugs; bug++ {
		found := false
		for n := uint64(0); n < 20_000 && !found; n++ {
			kept, _ := play(7, n, bug)
			found = !kept
		}
		if !found {
			t.Errorf("bug %d is not found", bug)
		}
	}
}
