//go:build !race

package rlqs_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

var (
	games = flag.Uint64("games", 1000, "how many games to play")
	first = flag.Uint64("first", 1, "the first game's seed")
)

// newGame deals a game by its seed.
func newGame(seed uint64, p plant) *game {
	g := &game{rng: rand.New(rand.NewPCG(seed, 19)), plant: p, now: 1}
	windows := []quota.Span{quota.Second, 10 * quota.Second, quota.Minute, 10 * quota.Minute}
	quotas, window := int64(1+g.rng.IntN(400)), windows[g.rng.IntN(len(windows))]
	g.params, _ = quota.NewParams(quotas, window, 1+g.rng.Int64N(2*quotas))
	g.law = &law{num: g.params.Num, den: g.params.Den, burst: g.params.Burst, last: 1}
	g.ledger = lease.Fresh(g.params, 1, 1, 100)
	for range 1 + g.rng.IntN(3) {
		g.planes = append(g.planes, g.startPlane())
	}
	hoard := g.rng.IntN(3) == 0
	for range 1 + g.rng.IntN(4) {
		n := &node{game: g, alive: true, speed: 1e6 + float64(g.rng.IntN(1999)) - 999, rate: g.someRate()}
		if hoard {
			n.hoards, n.rate = g.rng.IntN(2) == 0, 0.2
		}
		g.nodes = append(g.nodes, n)
		g.after(g.within(5*quota.Second), n.load)
		g.after(g.within(5*quota.Second), n.tick)
	}
	if !hoard && g.rng.IntN(2) == 0 {
		rate := g.someRate()
		g.after(g.within(quota.Second), func() { g.strict(rate) })
	}
	g.after(g.within(10*quota.Second), g.fault)
	return g
}

// fault is one of the things that go wrong, again and again.
func (g *game) fault() {
	n := g.nodes[g.rng.IntN(len(g.nodes))]
	p := g.planes[g.rng.IntN(len(g.planes))]
	switch g.rng.IntN(6) {
	case 0:
		n.crash()
	case 1:
		if n.stream != nil {
			n.stream.cut()
		}
	case 2:
		n.silent = !n.silent
	case 3: // A control plane is replaced, and knows nothing.
		for _, n := range g.nodes {
			if n.stream != nil && n.stream.plane == p {
				n.stream.cut()
			}
		}
		p.alive = false
		for i := range g.planes {
			if g.planes[i] == p {
				g.planes[i] = g.startPlane()
			}
		}
	case 4:
		n.rate = g.someRate()
	}
	g.after(g.within(20*quota.Second), g.fault)
}

// However filters come, go, fall silent, report late, twice or never, and whatever control planes
// do: all doors together admit at most burst + rate·t in any interval.
func TestNoGameBreaksTheBound(t *testing.T) {
	var offered, admitted, others int64
	for seed := *first; seed < *first+*games; seed++ {
		g := newGame(seed, none)
		if err := g.run(quota.Instant(90 * quota.Second)); err != nil {
			t.Fatalf("game %d: %v (%+v)", seed, err, g.params)
		}
		offered, admitted, others = offered+g.offered, admitted+g.admitted, others+g.others
	}
	t.Logf("%d games: %d requests, %d admitted, %d of them by another door", *games, offered, admitted, others)
	if admitted-others < int64(*games) {
		t.Error("hardly anything was admitted, so the games show nothing")
	}
}

// The games find bugs: each that is planted breaks the bound in one of a few hundred.
func TestGamesFindPlantedBugs(t *testing.T) {
	for p := none + 1; p < plants; p++ {
		found := uint64(0)
		for seed := uint64(1); seed <= 3000 && found == 0; seed++ {
			if newGame(seed, p).run(quota.Instant(90*quota.Second)) != nil {
				found = seed
			}
		}
		t.Logf("%v: found in game %d", p, found)
		if found == 0 {
			t.Errorf("no game found the planted bug: %v", p)
		}
	}
}
