package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// listGame is one consumer under one policy whose list of limits is changed again and again. One of
// them, the target, refuses; the others are far away, but their places, their number and their
// windows change, and so do the target's figures, its window, and whether it goes by tier.
type listGame struct {
	*lone
	mode, algorithm string
	// others are the windows of the other limits, in seconds.
	others []int64
	// target are the quota and the window in seconds of the target for each tier; byTier: they
	// count, and not the first for all.
	target [2]struct{ quota, window int64 }
	byTier bool
	tier   int
	law    quotatest.Eras
	pushed uint64
	steps  []string
}

// list is a list of limits in any order, with the target of a tier.
func (g *listGame) list(tier int) string {
	of := g.target[tier]
	all := []string{fmt.Sprintf(`{"quota":%d,"window":"%ds"}`, of.quota, of.window)}
	for _, window := range g.others {
		all = append(all, fmt.Sprintf(`{"quota":%d,"window":"%ds"}`, g.much(), window))
	}
	g.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return "[" + strings.Join(all, ",") + "]"
}

// much is a quota that the caller never uses up.
func (g *listGame) much() int64 {
	if g.algorithm == "sliding_log" {
		return 256
	}
	return 100_000
}

// push brings the policy as it is now into force at the control plane and the node.
func (g *listGame) push() {
	limits := `"limit":` + g.list(0)
	if g.byTier {
		limits = fmt.Sprintf(`"limits":{"free":%s,"gold":%s}`, g.list(0), g.list(1))
	}
	document := fmt.Sprintf(`{"version":"weir/v1","tiers":["free","gold"],"identity":{"consumer":[{"header":"x-key"}],`+
		`"tier":[{"header":"x-class","trusted":true}],"default_tier":"free"},"policies":[{"name":"listed",`+
		`"partition":["consumer"],"mode":%q,"algorithm":%q,%s}]}`, g.mode, g.algorithm, limits)
	g.steps = append(g.steps, fmt.Sprintf("%.3f %s", float64(g.now)/1e6-1e6, limits))
	if g.r.IntN(4) == 0 {
		g.plane.Restart(0)
	}
	snapshot, _, err := g.plane.Put(0, []byte(document))
	if err != nil {
		g.t.Fatalf("seed %d: %v\n%s", g.seed, err, document)
	}
	g.pushed++
	for worker := range g.nodes[0].ticked {
		if err := g.nodes[0].process.Apply(worker, snapshot, 1+g.pushed); err != nil {
			g.t.Fatal(err)
		}
	}
}

// change changes the list, the target or the caller's tier, and then the law.
func (g *listGame) change(windows []int64) {
	r, tier := g.r, 0
	switch r.IntN(6) {
	case 0: // The target's window, and nothing else of the list.
		g.target[r.IntN(2)].window = windows[r.IntN(len(windows))]
	case 1:
		g.byTier = !g.byTier
	case 2:
		g.tier = 1 - g.tier
	default:
		g.others = nil
		for _, window := range []int64{1, 2, 2_592_000, 5_184_000} {
			if r.IntN(2) == 0 && (window < 10 || g.much() > 1000) {
				g.others = append(g.others, window)
			}
		}
		g.target[r.IntN(2)].quota = 1 + r.Int64N(40)
	}
	g.push()
	if g.byTier {
		tier = g.tier
	}
	of := g.target[tier]
	burst := of.quota
	if strings.HasPrefix(g.algorithm, "fixed") || strings.HasSuffix(g.algorithm, "counter") {
		burst *= 2 // Two windows meet in any interval, or an estimate is off by as much.
	}
	p, err := quota.NewParams(of.quota, quota.Span(of.window)*quota.Second, burst)
	if err != nil {
		g.t.Fatal(err)
	}
	g.law.Change(g.now, p, 0)
}

// ask sends a request of the caller, and holds the law against it.
func (g *listGame) ask() bool {
	d := g.decision(g.send(question{class: []string{"free", "gold"}[g.tier], path: "/", cost: 1}))
	if d.Allowed {
		if over := g.law.Use(g.now, 1); over > 0 {
			g.t.Fatalf("seed %d: %s %s: %.2f too many pass; the lists were\n%s", g.seed, g.mode, g.algorithm, over,
				strings.Join(g.steps, "\n"))
		}
	}
	return d.Allowed
}

// Whatever becomes of a list of limits, whatever the order of its limits, with limits by tier and
// without, and whichever tier a consumer has: no more passes than the largest limit in force
// allows, and a caller who waits for a window of the new limit finds it whole.
func TestListsKeepWhatWasUsed(t *testing.T) {
	refused, kinds := 0, map[string]int{}
	for i := range *loneSeeds {
		g := &listGame{lone: newLone(t, *first+i)}
		r := rand.New(rand.NewPCG(g.seed, 0x1157))
		g.mode = pick(r, "local", "strict", "leased", "optimistic")
		g.algorithm = pick(r, "token_bucket", "fixed_window", "sliding_window", "sliding_log", "sliding_window_counter")
		windows, pause := []int64{10, 20, 60, 600}, quota.Instant(0)
		switch {
		case g.mode == "optimistic":
			g.algorithm = "token_bucket"
		case g.mode == "leased" && g.algorithm == "sliding_window_counter":
			g.algorithm = "sliding_log"
		}
		if g.mode == "leased" { // What was leased by the limit before has ended.
			windows, pause = []int64{600, 1200, 3600}, 31e6
		}
		if g.mode == "optimistic" {
			if pause = 2e6; len(g.nodes) > 1 { // All is reported before a change, and more Envoys have a slack.
				continue
			}
		}
		if g.algorithm == "fixed_window" { // Between windows of two lengths no law of an interval holds.
			windows = windows[1:2]
		}
		kinds[g.mode+" "+g.algorithm]++
		for tier := range g.target {
			g.target[tier].quota, g.target[tier].window = 1+r.Int64N(40), windows[r.IntN(len(windows))]
		}
		g.push() // A node hears how many share the limits with its first answer.
		g.decision(g.send(question{class: "free", path: "/", cost: 1}))
		g.advance(g.now + 7200e6)
		for range 25 {
			g.advance(g.now + pause)
			g.change(windows)
			if g.advance(g.now + 2000); r.IntN(3) == 0 {
				g.whole()
			}
			for range r.IntN(50) {
				if !g.ask() {
					refused++
				}
				if r.IntN(4) == 0 {
					g.advance(g.now + quota.Instant(r.Int64N(2e6)))
				}
			}
		}
	}
	if t.Logf("%d refused: %v", refused, kinds); refused < 1000 || len(kinds) < 10 {
		t.Error("too little was tried")
	}
}

// whole waits for a window of the limit in force, two of a counter, and uses all of it.
func (g *listGame) whole() {
	of := g.target[0]
	if g.byTier {
		of = g.target[g.tier]
	}
	wait := of.window * 11 / 10
	if slices.Contains([]string{"fixed_window", "sliding_window_counter"}, g.algorithm) {
		wait = of.window * 22 / 10
	}
	// A request that waited counts when it may be used last, and an answer has been on its way.
	g.advance(g.now + quota.Instant(wait)*1e6 + quota.Instant(2*lease.Deadline))
	for n := range of.quota {
		if !g.ask() {
			g.t.Fatalf("seed %d: %s %s: after a window of %d in %d s only %d pass; the lists were\n%s", g.seed, g.mode,
				g.algorithm, of.quota, of.window, n, strings.Join(g.steps, "\n"))
		}
	}
}
