package simulation

import (
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/policy"
)

const planeFill = controlplanetest.LostFill

var (
	seeds = flag.Uint64("seeds", 1000, "how many seeds to run")
	first = flag.Uint64("first", 1, "the first seed")
)

// total sums up many runs.
type total struct {
	mu                                                                                      sync.Mutex
	runs                                                                                    int
	sent, refused, mixed                                                                    int
	by                                                                                      [filtertest.Open + 1]int
	happened                                                                                [faultKinds]int
	central, centralPlain, optimistic, optimisticPlain, local, share, windows, localWindows float64
	at                                                                                      map[string]uint64
	due                                                                                     [faultKinds + 1]int
	modes                                                                                   map[string]int
}

// higher keeps the greatest share, and the seed that reached it.
func (t *total) higher(name string, to *float64, share float64, seed uint64) {
	if share > *to {
		*to = share
		t.at[name] = seed
	}
}

func (t *total) add(w *world) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs++
	t.sent += w.counts.sent
	t.refused += w.counts.refused
	t.mixed += w.counts.mixed
	for i, n := range w.counts.by {
		t.by[i] += n
	}
	for i, n := range w.happened {
		t.happened[i] += n
	}
	for i, n := range w.dues.asked {
		t.due[i] += n
	}
	for mode, n := range w.dues.modes {
		t.modes[mode] += n
	}
	for bucket, l := range w.laws {
		if w.modes[bucket] == policy.ModeOptimistic {
			t.higher("optimistic", &t.optimistic, l.share, w.seed)
			t.higher("optimistic plain", &t.optimisticPlain, l.plain, w.seed)
		} else {
			t.higher("central", &t.central, l.share, w.seed)
			t.higher("central plain", &t.centralPlain, l.plain, w.seed)
		}
	}
	for _, l := range w.grids {
		t.higher("windows", &t.windows, l.share, w.seed)
	}
	for _, n := range w.nodes {
		for key, l := range n.locals {
			if key.source == filtertest.Share {
				t.higher("share", &t.share, l.share, w.seed)
			} else {
				t.higher("local", &t.local, l.share, w.seed)
			}
		}
		for _, l := range n.grids {
			t.higher("local windows", &t.localWindows, l.share, w.seed)
		}
	}
}

// runSeeds runs seeds on all processors and calls done with each run; it stops when done says so.
func runSeeds(from, count uint64, start func(seed uint64) *world, done func(*world) bool) {
	var next atomic.Uint64
	var stop atomic.Bool
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for !stop.Load() {
				i := next.Add(1) - 1
				if i >= count {
					return
				}
				w := start(from + i)
				w.run()
				if !done(w) {
					stop.Store(true)
				}
			}
		})
	}
	group.Wait()
}

func TestBoundsHold(t *testing.T) {
	all := &total{at: map[string]uint64{}, modes: map[string]int{}}
	var failures atomic.Int64
	runSeeds(*first, *seeds, func(seed uint64) *world { return newWorld(seed, nothing) }, func(w *world) bool {
		if w.problem != "" {
			t.Error(w.report())
			return failures.Add(1) < 3
		}
		all.add(w)
		return true
	})
	t.Logf("%d runs, %d requests, %d refused; local %d, central %d, optimistic %d, share %d, open %d, mixed %d",
		all.runs, all.sent, all.refused,
		all.by[filtertest.Local], all.by[filtertest.Central], all.by[filtertest.Optimistic],
		all.by[filtertest.Share], all.by[filtertest.Open], all.mixed)
	for i, name := range faultNames {
		t.Logf("%-20s %d", name, all.happened[i])
		if all.happened[i] == 0 && *seeds >= 500 {
			t.Errorf("nothing was ever %s", name)
		}
	}
	t.Logf("none was refused of %d requests that were surely due: %v", all.due[faultKinds], all.modes)
	for i, name := range faultNames {
		t.Logf("surely due within 2 s of %s: %d", name, all.due[i])
		if all.due[i] == 0 && *seeds >= 500 {
			t.Errorf("nothing was surely due within 2 s of %s: the runs are too wild", name)
		}
	}
	for name, share := range map[string]float64{
		"central": all.central, "optimistic": all.optimistic, "windows": all.windows, "local": all.local,
		"local windows": all.localWindows,
		"share":         all.share,
	} {
		t.Logf("the bound of %s: %.2f %% was reached, by seed %d", name, 100*share, all.at[name])
		if *seeds >= 500 && share < 0.99 {
			t.Errorf("the bound of %s was never nearly reached: the runs are too tame", name)
		}
	}
	t.Logf("of burst + rate·t alone, undisturbed: central %.4f, optimistic %.4f (seed %d)", all.centralPlain,
		all.optimisticPlain, all.at["optimistic plain"])
}

// A refusal brings a node's own bucket the figures of a newer policy set. In the run of this seed a
// worker with the older policy set then uses more of the bucket than its own figures allow.
func TestARefusalBringsNewerFigures(t *testing.T) {
	w := newWorld(12586, nothing)
	if w.run(); w.problem != "" {
		t.Error(w.report())
	}
}

// If messages are late and nothing else goes wrong, nodes use their shares within the limit: beyond
// the grants of a bucket they use only tokens that are not charged yet.
func TestLateAnswersHoldTheBound(t *testing.T) {
	var mu sync.Mutex
	var shares, failures int
	most := 0.0
	runSeeds(*first, *seeds/4, newLateWorld, func(w *world) bool {
		mu.Lock()
		defer mu.Unlock()
		if w.problem != "" {
			t.Error(w.report())
			failures++
			return failures < 3
		}
		shares, most = shares+w.judgedShares, max(most, w.mostOfBoth)
		return true
	})
	t.Logf("%d requests by shares; %.2f %% of the bound was reached", shares, 100*most)
	if *seeds >= 500 && (shares < 5000 || most < 0.95) {
		t.Errorf("the runs are too tame: %d requests by shares, %.2f %% of the bound", shares, 100*most)
	}
}

// A seed is one run: whatever else the machine does, it comes out the same.
func TestSeedIsOneRun(t *testing.T) {
	for seed := *first; seed < *first+20; seed++ {
		a, b := newWorld(seed, nothing), newWorld(seed, nothing)
		a.run()
		b.run()
		if a.hash != b.hash || a.traced != b.traced {
			t.Errorf("seed %d: %x after %d events, and %x after %d", seed, a.hash, a.traced, b.hash, b.traced)
		}
	}
}
