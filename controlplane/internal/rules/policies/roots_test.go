package policies_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// listed is one policy whose lists are changed again and again.
type listed struct {
	t      *testing.T
	m      *memory
	s      *policies.Service
	now    time.Time
	number uint64
}

func newListed(t *testing.T) *listed {
	g := &listed{t: t, m: newMemory(), now: time.Unix(1e9, 0)}
	g.restart()
	return g
}

// restart has another replica go on from the store.
func (g *listed) restart() {
	g.s = policies.New(policies.Config{Store: g.m, Now: func() time.Time { return g.now }})
	if _, err := g.s.Refresh(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

// put puts a set of one policy whose limits are written so, and returns it. Without any there is no
// policy.
func (g *listed) put(limits string) *policy.Policy {
	g.t.Helper()
	doc := "version: weir/v1\ntiers: [free, gold]\nidentity: {default_tier: free, consumer: [client_ip]}\npolicies:\n"
	if limits == "" {
		doc = policies.EmptyDocument
	} else {
		doc += "  - {name: p, partition: [consumer], " + limits + "}\n"
	}
	g.number = put(g.t, g.s, g.number, []byte(doc)).Version
	now, _ := g.s.Current()
	if limits == "" {
		return &policy.Policy{}
	}
	return &now.Set.Policies[0]
}

// listOf writes a list of limits with these windows.
func listOf(windows []quota.Span) string {
	var all []string
	for _, w := range windows {
		all = append(all, fmt.Sprintf("{quota: 10, window: %s}", policy.FormatSpan(w)))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// A limit that was taken out finds its bucket when it is back, whatever happened to all other
// limits, and no other limit gets that bucket meanwhile.
func TestALimitThatComesBackFindsItsBucket(t *testing.T) {
	const one, two = "limit: [%s]", "limits: {free: [%s], gold: [%s]}"
	const candidate = "limit: [%s], candidate: {limit: [%s]}"
	const s, m, h = "{quota: 5, window: 1s}", "{quota: 10, window: 10m}", "{quota: 100, window: 1h}"
	const d = "{quota: 9, window: 1d}"
	for name, steps := range map[string][][2]string{
		"the longest, and then another": {
			{one, s + "," + m + "," + h}, {one, s + "," + m}, {one, s}, {one, s + "," + m},
			{one, s + "," + m + "," + h}},
		"the policy": {{one, s + "," + h}, {one, s}, {"", ""}, {one, s}, {one, h + "," + s}},
		"of a tier": {{two, s + "," + h + "|" + m}, {two, s + "|" + m}, {two, s + "|" + m + "," + d},
			{two, s + "," + d + "|" + m}, {two, s + "," + d + "," + h + "|" + m}},
		"of a candidate": {{candidate, s + "|" + m + "," + h}, {candidate, s + "|" + m}, {one, s},
			{candidate, s + "|" + h}},
		"without tiers": {{two, s + "|" + m + "," + h}, {one, s}, {two, s + "|" + s + "," + h}},
	} {
		g := newListed(t)
		roots := map[string]quota.Span{}
		for i, step := range steps {
			limits := ""
			if step[0] != "" {
				var args []any
				for part := range strings.SplitSeq(step[1], "|") {
					args = append(args, part)
				}
				limits = fmt.Sprintf(step[0], args...)
			}
			p := g.put(limits)
			for n, l := range append(slices.Clone(p.Limits), p.Candidate...) {
				key := fmt.Sprint(n >= len(p.Limits), policy.FormatSpan(l.Window))
				if was, known := roots[key]; known && was != l.Root {
					t.Errorf("%s, step %d: %s has the root %d, and had %d", name, i, key, l.Root, was)
				}
				roots[key] = l.Root
			}
			g.now = g.now.Add(time.Minute)
		}
	}
}

// A removed limit is forgotten once no use of it counts, and kept within a bound.
func TestWhatIsGoneEnds(t *testing.T) {
	g := newListed(t)
	hour, both := listOf([]quota.Span{quota.Hour}), listOf([]quota.Span{quota.Second, quota.Hour})
	root := g.put("limit: " + hour).Limits[0].Root
	g.put("limit: " + both)
	g.put("limit: " + listOf([]quota.Span{quota.Second}))
	current, _ := g.s.Current()
	if gone := current.Version.Gone["p"]; len(gone) != 1 || gone[0].Root != root || gone[0].Window != quota.Hour {
		t.Fatalf("gone are %v", gone)
	}
	g.now = g.now.Add(3 * time.Hour)
	g.put("limit: " + listOf([]quota.Span{2 * quota.Second}))
	if current, _ = g.s.Current(); len(current.Version.Gone) != 0 {
		t.Errorf("after three hours gone are %v", current.Version.Gone)
	}
	doc := func(from int) string {
		all := "version: weir/v1\npolicies:\n"
		for i := range 900 {
			all += fmt.Sprintf("  - {name: p%d, partition: [], limit: {quota: 1, window: 1d}}\n", from+i)
		}
		return all
	}
	for i := range 3 {
		g.number = put(t, g.s, g.number, []byte(doc(1000*i))).Version
	}
	if current, _ = g.s.Current(); len(current.Version.Gone) != 1024 {
		t.Errorf("%d are kept in mind", len(current.Version.Gone))
	}
}

// Any history of lists, by tier and not, with limits that are taken out, put back and turned, whose
// windows change, and a policy that goes and comes back. A bucket that may still have use goes over
// to another window only if that limit takes the place of another limit in a list. Without tiers a
// limit that comes back finds its own bucket.
func TestNoBucketIsGivenTwice(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	back, taken := 0, 0
	for game := range 200 {
		g := rootGame{listed: newListed(t), r: r, tiers: game%2 > 0, last: map[quota.Span]map[quota.Span]bool{},
			since: map[quota.Span]time.Time{}}
		g.says = fmt.Sprintf("seed %d, game %d", seed, game)
		for range 30 {
			g.turn()
		}
		back, taken = back+g.back, taken+g.taken
	}
	if t.Logf("%d came back, %d took a place", back, taken); back < 500 || taken < 300 {
		t.Error("too little was tried")
	}
}

// rootGame is a game of TestNoBucketIsGivenTwice.
type rootGame struct {
	*listed
	r             *rand.Rand
	tiers, byTier bool
	windows       [2][]quota.Span
	// last are the windows by which each bucket was last in lists, and lists all lists then.
	last        map[quota.Span]map[quota.Span]bool
	since       map[quota.Span]time.Time // when each bucket was last in a list
	lists       []policy.Limit
	says        string
	back, taken int
}

// turn changes the lists once, and looks at each limit's bucket.
func (g *rootGame) turn() {
	gone, limits := g.r.IntN(12) == 0, ""
	if g.byTier = g.byTier != (g.tiers && g.r.IntN(10) == 0); !gone {
		for n := range g.windows {
			g.windows[n] = g.change(g.windows[n])
		}
		limits = "limit: " + listOf(g.windows[0])
		if g.byTier {
			limits = fmt.Sprintf("limits: {free: %s, gold: %s}", listOf(g.windows[0]), listOf(g.windows[1]))
		}
	}
	if g.r.IntN(4) == 0 {
		g.restart()
	}
	g.says += "\n" + limits
	now := g.put(limits).Limits
	g.now = g.now.Add(time.Second)
	for _, l := range now {
		g.look(l, now)
	}
	live := map[quota.Span]bool{}
	for _, l := range now {
		if !live[l.Root] && (!g.tiers || g.last[l.Root] == nil) { // Tiers may have a bucket by several windows.
			g.last[l.Root] = map[quota.Span]bool{}
		}
		live[l.Root] = true
		g.last[l.Root][l.Window], g.since[l.Root] = true, g.now
	}
	g.lists = now
}

// change takes a limit out of a list, puts one in, or changes a window, and turns it.
func (g *rootGame) change(list []quota.Span) []quota.Span {
	all := []quota.Span{quota.Second, quota.Minute, 10 * quota.Minute, quota.Hour, quota.Day, 30 * quota.Day}
	w := all[g.r.IntN(len(all))]
	at := slices.Index(list, w)
	switch {
	case at >= 0 && len(list) > 1:
		list = slices.Delete(list, at, at+1)
	case at < 0 && len(list) > 1 && g.r.IntN(4) == 0:
		list[g.r.IntN(len(list))] = w
	case at < 0:
		list = append(list, w)
	}
	g.r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// look looks at the bucket of a limit among the limits in force.
func (g *rootGame) look(l policy.Limit, now []policy.Limit) {
	had := func(root quota.Span) func(policy.Limit) bool {
		return func(o policy.Limit) bool { return o.Root == root }
	}
	window := policy.FormatSpan(l.Window)
	if was := g.last[l.Root]; len(was) > 0 && !was[l.Window] {
		if g.taken++; !slices.ContainsFunc(g.lists, had(l.Root)) {
			g.t.Fatalf("%s\na limit per %s has the bucket of one that was taken out", g.says, window)
		}
	}
	if g.tiers || slices.ContainsFunc(g.lists, had(l.Root)) {
		return // Tiers have buckets of their own; or it takes the place of one.
	}
	for root, windows := range g.last {
		if !windows[l.Window] || slices.ContainsFunc(now, had(root)) && root != l.Root {
			continue
		}
		if g.back++; g.since[root].After(g.since[l.Root]) {
			g.t.Fatalf("%s\na limit per %s does not find its bucket again", g.says, window)
		}
	}
}
