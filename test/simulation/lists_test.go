package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/quota/quotatest"
)

// listGame is one consumer under one policy that is changed again and again. One limit of its list,
// the target, refuses; the others are far away, but their places, their number and their windows
// change. Each of these changes: whether the target is in the list, its figures and its window,
// whether tiers have own targets, the consumer's tier, its own limits, the mode, and whether the
// policy is enforced. A version is rolled out to one of two Envoys, and promoted or taken back.
type listGame struct {
	*lone
	algorithm string
	doc       listDoc
	draft     *listDoc
	// own are the consumer's own limits in place of the target, if their window is not 0.
	own listTarget
	// alone: the caller has no other limits of its own.
	alone  bool
	tier   int
	law    quotatest.Eras
	pushed uint64
	steps  []string
	kinds  map[string]int
	// eager: the mode became optimistic since the bucket was whole.
	eager bool
	// lent: tokens of the limits before are in the hands of Envoys still. bucket is the target's.
	lent   bool
	bucket keyhash.Key
	// shifts: the parts of windows change.
	shifts bool
}

// listDoc is a policy set of the game.
type listDoc struct {
	mode string
	// others are the windows of the other limits, in seconds.
	others []int64
	// target has the target of each tier. Without byTier the first counts for all tiers.
	target [2]listTarget
	byTier bool
	// out: the target is not in the list. shadow: the policy refuses no caller.
	out, shadow bool
}

// listTarget is a limit: a window is in seconds.
type listTarget struct{ quota, window int64 }

// of returns the target of a tier.
func (d *listDoc) of(tier int) listTarget {
	if !d.byTier {
		tier = 0
	}
	return d.target[tier]
}

// list returns a list of limits in any order, with the target of a tier.
func (g *listGame) list(d *listDoc, tier int) string {
	var all []string
	if !d.out {
		of := d.of(tier)
		all = append(all, fmt.Sprintf(`{"quota":%d,"window":"%ds"}`, of.quota, of.window))
	}
	for _, window := range d.others {
		all = append(all, fmt.Sprintf(`{"quota":%d,"window":"%ds"}`, g.much(), window))
	}
	g.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return "[" + strings.Join(all, ",") + "]"
}

// much returns a quota that the caller never uses up.
func (g *listGame) much() int64 {
	if g.algorithm == "sliding_log" {
		return 256
	}
	return 100_000
}

// document returns the policy set as it is written.
func (g *listGame) document(d *listDoc) []byte {
	limits, more := `"limit":`+g.list(d, 0), ""
	if d.byTier {
		limits = fmt.Sprintf(`"limits":{"free":%s,"gold":%s}`, g.list(d, 0), g.list(d, 1))
	}
	if d.shadow {
		more = `"enforcement":"shadow",`
	}
	return fmt.Appendf(nil, `{"version":"weir/v1","tiers":["free","gold"],"identity":{"consumer":[{"header":"x-key"}],`+
		`"tier":[{"header":"x-class","trusted":true}],"default_tier":"free"},"policies":[{"name":"listed",`+
		`"partition":["consumer"],"mode":%q,"algorithm":%q,%s%s}]}`, d.mode, g.algorithm, more, limits)
}

// push brings the policy as it is now into force at the control plane, or the draft.
func (g *listGame) push() {
	d, percent := &g.doc, 100
	if g.draft != nil {
		d, percent = g.draft, 50
	}
	document := g.document(d)
	if g.r.IntN(4) == 0 {
		g.plane.Restart(0)
	}
	if _, _, err := g.plane.PutPartly(0, document, percent); err != nil {
		g.t.Fatalf("seed %d: %v\n%s", g.seed, err, document)
	}
	g.note("%d %% have %s", percent, document[strings.Index(string(document), `"listed"`):])
	g.apply()
}

// note notes a change, with its time.
func (g *listGame) note(format string, args ...any) {
	g.steps = append(g.steps, fmt.Sprintf("%.3f %s", float64(g.now)/1e6-1e6, fmt.Sprintf(format, args...)))
}

// apply brings the wanted policies and limits into force on each node.
func (g *listGame) apply() {
	g.pushed++
	for i, n := range g.nodes {
		snapshot, _ := g.plane.Snapshot(0, loneName(i))
		for worker := range n.ticked {
			if err := n.process.Apply(worker, snapshot, 1+g.pushed); err != nil {
				g.t.Fatal(err)
			}
		}
	}
}

// limits gives the law the targets that are in force for the caller. eager is true if their mode is
// optimistic from now on.
func (g *listGame) limits(eager bool) {
	params := func(of listTarget) quota.Params {
		if g.own.window > 0 {
			of = g.own
		}
		burst := of.quota
		if strings.HasPrefix(g.algorithm, "fixed") || strings.HasSuffix(g.algorithm, "counter") {
			burst *= 2 // Two windows meet in any interval, or an estimate is off by as much.
		}
		p, err := quota.NewParams(of.quota, quota.Span(of.window)*quota.Second, burst)
		if err != nil {
			g.t.Fatal(err)
		}
		return p
	}
	var beside []quota.Params
	if g.draft != nil {
		beside = append(beside, params(g.draft.of(g.tier)))
	}
	now := params(g.doc.of(g.tier))
	g.law.Change(g.now, now, 0, beside...)
	if g.lent {
		for _, n := range g.nodes {
			held, _ := n.process.Held(g.bucket)
			g.law.Slack(held)
		}
	}
	if eager { // Envoys do not know the tokens used in the mode before, as after a restart.
		g.eager = true
		g.law.Slack(int64(len(g.nodes)) * lease.Slack(now, int64(len(g.nodes))))
	}
}

// change changes one thing, and then the law.
func (g *listGame) change(windows []int64) {
	r := g.r
	did := ""
	// Own limits find their buckets by the policy's windows; so those stay while others are there.
	free := g.own.window == 0 || g.alone && len(g.doc.others) == 0
	switch kind := r.IntN(12); {
	case g.doc.out: // Nothing but that it comes back.
		did, g.doc.out = "put back", false
		g.push()
	case kind < 2:
		did = "tier"
		g.tier = 1 - g.tier
		g.note("the caller's tier is %d", g.tier)
	case kind < 4:
		did = "own limits"
		g.override(windows)
	case g.draft != nil:
		g.end()
		did = "rollout"
	case kind == 4 && len(g.nodes) > 1 && g.doc.mode != "local" && g.doc.mode != "optimistic":
		did = "rollout"
		draft := g.doc
		g.draft = &draft
		tier := 0
		if draft.byTier {
			tier = r.IntN(2)
		}
		draft.target[tier].quota = draft.target[tier].quota%40 + 1 + r.Int64N(10)
		if g.algorithm == "token_bucket" && free {
			draft.target[tier].window = windows[r.IntN(len(windows))]
		}
		g.push()
	case kind == 5 && len(g.doc.others) > 0 && g.own.window == 0:
		did, g.doc.out = "taken out", true
		g.push()
	case kind == 6:
		did, g.doc.shadow = "enforcement", !g.doc.shadow
		g.push()
	case kind == 7 && windows[0] >= 600 && g.doc.mode != "local" && g.algorithm != "sliding_window_counter":
		did = "mode"
		g.doc.mode = pick(r, "strict", "leased")
		if g.algorithm == "token_bucket" && len(g.nodes) == 1 {
			g.doc.mode = pick(r, "strict", "leased", "optimistic")
		}
		g.push()
	case kind == 8 && free: // The target's window, and nothing else of the list.
		did = "window"
		g.doc.target[r.IntN(2)].window = windows[r.IntN(len(windows))]
		g.push()
	case kind == 9:
		did = "by tier"
		g.doc.byTier = !g.doc.byTier
		g.push()
	case g.own.window == 0 || g.own.window == g.doc.of(0).window:
		did = "list"
		g.relist()
		g.push()
	default:
		did = "nothing"
	}
	g.kinds[did]++
	g.limits(did == "mode" && g.doc.mode == "optimistic")
}

// relist changes the others and a target's quota.
func (g *listGame) relist() {
	g.doc.others = nil
	for _, window := range []int64{1, 2, 2_592_000, 5_184_000} {
		if !g.lent && g.r.IntN(2) == 0 && (window < 10 || g.much() > 1000) {
			g.doc.others = append(g.doc.others, window)
		}
	}
	g.doc.target[g.r.IntN(2)].quota = 1 + g.r.Int64N(40)
}

// override gives the caller limits of its own, changes them, or gives it the policy's limits again.
func (g *listGame) override(windows []int64) {
	var limits []controlplanetest.Own
	if g.own = (listTarget{}); g.r.IntN(3) > 0 {
		// A window that others do not have takes the target's place.
		g.own = listTarget{1 + g.r.Int64N(40), g.doc.of(0).window}
		g.alone = len(g.doc.others) == 0
		if g.alone && g.draft == nil && g.algorithm == "token_bucket" {
			g.own.window = windows[g.r.IntN(len(windows))]
		}
		window := quota.Span(g.own.window) * quota.Second
		limits = append(limits, controlplanetest.Own{Quota: g.own.quota, Window: window})
		for _, window := range g.doc.others {
			limits = append(limits, controlplanetest.Own{Quota: g.much(), Window: quota.Span(window) * quota.Second})
		}
	}
	g.r.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	g.plane.Consumers.Put("x-key", "a", "listed", limits)
	for _, n := range g.nodes {
		n.process.Consumers = g.plane.Consumers.View()
	}
	g.note("the caller has %v", limits)
}

// end promotes the draft, or takes it back.
func (g *listGame) end() {
	percent := 0
	if g.r.IntN(2) == 0 {
		percent, g.doc = 100, *g.draft
	}
	g.draft = nil
	if err := g.plane.Roll(0, percent); err != nil {
		g.t.Fatal(err)
	}
	g.note("%d %% have the draft", percent)
	g.apply()
}

// ask sends a request of the caller, and holds the law against it.
func (g *listGame) ask() bool {
	node := 0
	if g.doc.mode != "local" && g.doc.mode != "optimistic" {
		node = g.r.IntN(len(g.nodes))
	}
	return g.askAt(node)
}

func (g *listGame) askAt(node int) bool {
	d := g.decision(g.send(question{node: node, class: []string{"free", "gold"}[g.tier], path: "/", cost: 1}))
	if len(d.Hits) > 0 && !g.doc.shadow {
		g.bucket = d.Hits[0].Bucket
	}
	if d.Allowed && !g.doc.out && !g.doc.shadow { // Else it is not charged.
		if over := g.law.Use(g.now, 1); over > 0 {
			g.t.Fatalf("seed %d: %s: at %.3f %.2f too many pass; the changes were\n%s", g.seed, g.algorithm,
				float64(g.now)/1e6-1e6, over, strings.Join(g.steps, "\n"))
		}
	}
	return d.Allowed
}

// Whatever becomes of a limit: its list, its place in it, whether it is there, its tiers and the
// caller's, the caller's own limits, drafts, its mode and whether it is enforced: no more passes
// than the largest limit in force allows, a limit that was not in force for a while finds its use,
// and a caller who waits for a window of the new limit finds it whole.
func TestListsKeepWhatWasUsed(t *testing.T) {
	refused, kinds, changes := 0, map[string]int{}, map[string]int{}
	for i := range *loneSeeds {
		g := &listGame{lone: newLone(t, *first+i), kinds: changes}
		r := rand.New(rand.NewPCG(g.seed, 0x1157))
		g.doc.mode = pick(r, "local", "strict", "leased", "optimistic")
		g.algorithm = pick(r, "token_bucket", "fixed_window", "sliding_window", "sliding_log", "sliding_window_counter")
		windows, pause := []int64{10, 20, 60, 600}, quota.Instant(0)
		switch {
		case g.doc.mode == "optimistic":
			g.algorithm = "token_bucket"
		case g.doc.mode == "leased" && g.algorithm == "sliding_window_counter":
			g.algorithm = "sliding_log"
		}
		switch {
		case g.doc.mode != "leased":
		case r.IntN(2) == 0: // The leases of the limit before have ended.
			windows, pause = []int64{600, 1200, 3600}, 31e6
		default:
			g.lent = true
		}
		if g.doc.mode == "optimistic" {
			if pause = 2e6; len(g.nodes) > 1 { // All is reported before a change, and more Envoys have a slack.
				continue
			}
		}
		if g.algorithm == "fixed_window" { // Between windows of two lengths no law of an interval holds.
			windows = windows[1:2]
		}
		kinds[g.doc.mode+" "+g.algorithm]++
		for tier := range g.doc.target {
			g.doc.target[tier] = listTarget{1 + r.Int64N(40), windows[r.IntN(len(windows))]}
		}
		g.plane.Consumers = &controlplanetest.Consumers{}
		g.plane.Restart(0)
		g.push() // A node hears how many share the limits with its first answer.
		for node := range g.nodes {
			g.decision(g.send(question{node: node, class: "free", path: "/", cost: 1}))
		}
		g.advance(g.now + 7200e6)
		for range 25 {
			g.advance(g.now + pause)
			g.change(windows)
			if g.advance(g.now + 2000); r.IntN(3) == 0 && g.draft == nil && !g.doc.out && !g.doc.shadow {
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
	if t.Logf("%d refused: %v; %v", refused, kinds, changes); refused < 1000 || len(kinds) < 10 || len(changes) < 10 {
		t.Error("too little was tried")
	}
}

// While a draft is rolled out, a consumer's own limits are the same in both versions. Tokens that
// were used of them count in both once they end.
func TestARolloutCountsWhatWasUsedOfOwnLimits(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "sliding_window", "sliding_log", "fixed_window"} {
		g := &listGame{lone: newLone(t, 1), algorithm: algorithm, kinds: map[string]int{}}
		for len(g.nodes) < 2 {
			g.lone = newLone(t, g.seed+1)
		}
		g.doc = listDoc{mode: "strict", target: [2]listTarget{{5, 3600}, {5, 3600}}}
		g.plane.Consumers = &controlplanetest.Consumers{}
		g.plane.Restart(0)
		g.push()
		draft := g.doc
		draft.target[0].quota = 10
		g.draft = &draft
		g.push()
		ask := func(times int) (passed int) {
			for range times {
				for node := range g.nodes {
					d := g.decision(g.send(question{node: node, class: "free", path: "/", cost: 1}))
					if d.Allowed {
						passed++
					}
				}
			}
			return passed
		}
		own := func(limits ...controlplanetest.Own) {
			g.plane.Consumers.Put("x-key", "a", "listed", limits)
			for _, n := range g.nodes {
				n.process.Consumers = g.plane.Consumers.View()
			}
			g.advance(g.now + 1000)
		}
		ask(1)
		own(controlplanetest.Own{Quota: 30, Window: quota.Hour})
		before := ask(20)
		own()
		if after := ask(20); before != 28 || after != 0 {
			t.Errorf("%s: of 30 %d pass beside the first two, and %d more once they end", algorithm, before, after)
		}
	}
}

// A draft suspends a limit, and a consumer's own limits come and go twice while it is rolled out.
// Tokens of them that Envoys of both versions used count in both, also once the draft is promoted
// or taken back.
func TestADraftThatSuspendsCountsWhatWasUsedOfOwnLimits(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "sliding_window", "sliding_log", "fixed_window"} {
		for seed := range uint64(8) {
			g := &listGame{lone: newLone(t, 1+seed), algorithm: algorithm, kinds: map[string]int{}}
			for len(g.nodes) < 2 {
				g.lone = newLone(t, g.seed+100)
			}
			g.doc = listDoc{mode: pick(g.r, "strict", "leased"), target: [2]listTarget{{5, 3600}, {5, 3600}}}
			g.plane.Consumers = &controlplanetest.Consumers{}
			g.plane.Restart(0)
			g.push()
			draft := g.doc
			draft.target[0].quota = 0
			g.draft = &draft
			g.push()
			ask := func(times int) (passed int) {
				for range times {
					d := g.decision(g.send(question{node: g.r.IntN(2), class: "free", path: "/", cost: 1}))
					if g.advance(g.now + 2000); d.Allowed {
						passed++
					}
				}
				return passed
			}
			own := func(limits ...controlplanetest.Own) {
				g.plane.Consumers.Put("x-key", "a", "listed", limits)
				for _, n := range g.nodes {
					n.process.Consumers = g.plane.Consumers.View()
				}
				g.advance(g.now + 31e6) // The leases from before have ended.
			}
			used, beside := 0, 0
			for range 3 {
				own(controlplanetest.Own{Quota: 30, Window: quota.Hour})
				used += ask(12)
				own()
				beside += ask(10)
			}
			g.end()
			beside += ask(10)
			// A bucket earns two of the own limit meanwhile, and leases of both Envoys lie idle.
			if used < 28 || used > 32 || beside > 0 {
				t.Errorf("%s, seed %d, %s: %d of 30 pass, and %d by the policy's limits", algorithm, seed, g.doc.mode,
					used, beside)
			}
		}
	}
}

// A change of the algorithm, or to local mode, begins with a new bucket, once: a change back gives
// no tokens again, and algorithms of windows share one bucket.
func TestAnotherAlgorithmBeginsOnce(t *testing.T) {
	g := &listGame{lone: newLone(t, 1), algorithm: "token_bucket", kinds: map[string]int{}}
	g.plane.Consumers = &controlplanetest.Consumers{}
	g.doc = listDoc{mode: "strict", target: [2]listTarget{{10, 3600}, {10, 3600}}}
	for i, c := range []struct {
		mode, algorithm string
		passed          int
	}{
		{"strict", "token_bucket", 10}, {"strict", "fixed_window", 10}, {"strict", "sliding_log", 0},
		{"strict", "token_bucket", 0}, {"local", "token_bucket", 10}, {"strict", "token_bucket", 0},
		{"local", "sliding_window", 10}, {"local", "token_bucket", 0}, {"leased", "sliding_window", 0},
	} {
		g.doc.mode, g.algorithm = c.mode, c.algorithm
		g.push()
		passed := 0
		for range 20 {
			d := g.decision(g.send(question{class: "free", path: "/", cost: 1}))
			if d.Allowed {
				passed++
			}
		}
		if passed != c.passed {
			t.Errorf("step %d, %s %s: %d pass, not %d", i, c.mode, c.algorithm, passed, c.passed)
		}
	}
}

// whole waits for a window of the limit in force, two of a counter, and uses all of it.
func (g *listGame) whole() {
	of := g.doc.of(g.tier)
	if g.own.window > 0 {
		of = g.own
	}
	wait := (of.window*11 + 9) / 10
	if slices.Contains([]string{"fixed_window", "sliding_window_counter"}, g.algorithm) {
		wait = (of.window*22 + 9) / 10
	}
	if g.eager { // Tokens that cold Envoys used too much are paid back first: up to a burst.
		wait, g.eager = 2*wait, false
	}
	if g.lent { // Lent tokens count for one and a half leases, also tokens of the limit before.
		wait += 46
	}
	if g.shifts { // A request that waited as a part ended counts as if it had been lent, with each change.
		wait += int64(quota.LongestLease / quota.Second)
	}
	// A request that waited counts when it may be used last, and an answer has been on its way.
	g.advance(g.now + quota.Instant(wait)*1e6 + quota.Instant(2*lease.Deadline))
	for n := range of.quota {
		if !g.askAt(0) {
			g.t.Fatalf("seed %d: %s: after a window of %d in %d s only %d pass; the changes were\n%s", g.seed,
				g.algorithm, of.quota, of.window, n, strings.Join(g.steps, "\n"))
		}
	}
}

// With each change a consumer's own list has new windows, in any order, and at least the policy's
// number of limits. One of them is tight. No more passes than the largest limit in force allows,
// and a caller who waits for a window of the new limit finds it whole.
func TestNewWindowsOfOwnListsKeepWhatWasUsed(t *testing.T) {
	refused, kinds := 0, map[string]int{}
	for i := range *loneSeeds {
		g := &listGame{lone: newLone(t, *first+i), kinds: map[string]int{}, alone: true}
		r := rand.New(rand.NewPCG(g.seed, 0x0577))
		g.algorithm = pick(r, "token_bucket", "sliding_window", "sliding_log", "sliding_window_counter")
		g.doc.mode = pick(r, "local", "strict", "leased")
		shortest, pause := int64(10), quota.Instant(0)
		if g.doc.mode == "leased" {
			if g.algorithm == "sliding_window_counter" {
				g.algorithm = "sliding_window"
			}
			shortest, pause = 600, 31e6 // The leases of the limit before have ended.
		}
		g.shifts = g.algorithm == "sliding_window"
		kinds[g.doc.mode+" "+g.algorithm]++
		g.doc.target[0] = listTarget{g.much(), 5} // The policy's limit is far away.
		g.plane.Consumers = &controlplanetest.Consumers{}
		g.plane.Restart(0)
		g.push()
		for node := range g.nodes {
			g.decision(g.send(question{node: node, class: "free", path: "/", cost: 1}))
		}
		g.advance(g.now + 7200e6)
		for range 25 {
			g.advance(g.now + pause)
			g.giveList(1+r.IntN(4), shortest)
			g.limits(false)
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

// giveList gives the caller size limits of its own with new windows: a tight limit with a window of
// one to three times the shortest, and limits that are far away, with windows nearer to each other
// than to the tight window.
func (g *listGame) giveList(size int, shortest int64) {
	g.own = listTarget{1 + g.r.Int64N(20), shortest + g.r.Int64N(2*shortest)}
	limits := []controlplanetest.Own{{Quota: g.own.quota, Window: quota.Span(g.own.window) * quota.Second}}
	for len(limits) < size {
		far := controlplanetest.Own{Quota: g.much()}
		far.Window = quota.Second + quota.Span(g.r.Int64N(1000))*quota.Millisecond
		if g.algorithm != "sliding_log" {
			far.Window = quota.Span(20*shortest+g.r.Int64N(40*shortest)) * quota.Second
		}
		limits = append(limits, far)
	}
	g.r.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	g.plane.Consumers.Put("x-key", "a", "listed", limits)
	for _, n := range g.nodes {
		n.process.Consumers = g.plane.Consumers.View()
	}
	g.note("the caller has %v", limits)
}
