package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// gameSet has a policy of each mode; the quota of one differs in the version that is rolled out.
func gameSet(quota int) string {
	return fmt.Sprintf(`
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: api
    partition: [consumer]
    limit: {quota: 20, window: 1d}
    penalty: {after: {refusals: 5, within: 1m}, for: 1h}
  - {name: log, partition: [consumer], limit: {quota: %d, window: 1d}, algorithm: sliding_log, mode: strict}
  - {name: opt, partition: [consumer], limit: {quota: 20, window: 1d}, mode: optimistic}
  - {name: here, partition: [consumer], limit: {quota: 20, window: 1d}, mode: local}
`, quota)
}

var gamePolicies = []string{"api", "log", "opt", "here"}

// facts are the statements of one view about a caller, by subject. Views that know a fact must
// agree about it.
type facts map[string]string

// contradictions are the facts about which views do not agree.
func contradictions(views map[string]facts) (all []string) {
	said := map[string]map[string][]string{}
	for view, known := range views {
		for fact, value := range known {
			if said[fact] == nil {
				said[fact] = map[string][]string{}
			}
			said[fact][value] = append(said[fact][value], view)
		}
	}
	for fact, values := range said {
		if len(values) > 1 {
			all = append(all, fmt.Sprintf("%s: %q", fact, values))
		}
	}
	slices.Sort(all)
	return all
}

// viewsGame is an operator and some nodes at work, with the statements that all views must then
// make.
type viewsGame struct {
	*plane
	t *testing.T
	r *rand.Rand
	// entries counts the acts of the operator. refused counts the refusals that nodes reported, by
	// policy.
	entries int
	refused map[string]int64
	// order is the policy, and state the state, of the order in force, if there is an order.
	order, state string
	// banned, bypassed and keyBanned hold the states of callers; keyBanned is by caller and policy.
	banned, bypassed, keyBanned, penalised map[string]bool
	// rolledOut: version is in force beside version 1.
	rolledOut bool
	version   uint64
}

// act makes a change by the API.
func (g *viewsGame) act(method, path, body string) {
	g.t.Helper()
	header := map[string]string{"If-Match": "*"}
	if strings.HasPrefix(body, "{") {
		header["Content-Type"] = "application/json"
	}
	if w := g.do(call{"root", method, path, header, body}); w.Code >= 300 {
		g.t.Fatalf("%s %s %s: %d %s", method, path, body, w.Code, w.Body)
	}
	g.entries++
}

// turn does something to a caller.
func (g *viewsGame) turn(who string) {
	p := gamePolicies[g.r.IntN(3)]
	key := "/v1/keys/" + p
	at := "?partition=consumer:" + who
	switch g.r.IntN(9) {
	case 0, 1:
		g.take(who, p)
	case 2:
		if g.r.IntN(2) == 0 {
			g.act("POST", key+"/reset"+at, `{"reason": "x"}`)
		} else {
			g.act("POST", key+"/grant"+at, `{"reason": "x", "tokens": 3}`)
		}
	case 3:
		if g.keyBanned[who+p] = !g.keyBanned[who+p]; g.keyBanned[who+p] {
			g.act("POST", key+"/ban"+at, `{"reason": "floods"}`)
		} else {
			g.act("DELETE", key+"/ban"+at, "")
		}
	case 4:
		g.banned[who], g.bypassed[who] = g.r.IntN(2) == 0, g.r.IntN(2) == 0
		g.act("PUT", "/v1/consumers/"+who, g.consumer(who))
	case 5:
		g.order, g.state = append(gamePolicies, "", "")[g.r.IntN(6)], []string{"off", "shadow", "enforce"}[g.r.IntN(3)]
		about := ""
		if g.order != "" {
			about = fmt.Sprintf(`"policy": %q, `, g.order)
		}
		g.act("PUT", "/v1/enforcement", fmt.Sprintf(`{"orders": [{%s"state": %q, "reason": "y"}]}`, about, g.state))
	case 6:
		g.report(who, p)
	case 7:
		if g.rolledOut = !g.rolledOut; g.rolledOut {
			g.version++
			g.act("PUT", "/v1/policyset?nodes=50", gameSet(21+g.r.IntN(40)))
		} else {
			g.act("DELETE", "/v1/rollout", "")
		}
	case 8:
		if !g.penalised[who] {
			g.penalised[who] = true
			g.punish(g.t, who)
		}
	}
}

// consumer returns the document of a caller, at times with its own limit.
func (g *viewsGame) consumer(who string) string {
	has := map[string]any{}
	if g.banned[who] {
		has["banned"] = map[string]any{"reason": "abuse"}
	}
	if g.bypassed[who] {
		has["bypass"] = map[string]any{"reason": "pays"}
	}
	if len(has) == 0 || g.r.IntN(2) == 0 {
		has["overrides"] = []any{map[string]any{"policy": "api", "limit": map[string]any{"quota": 7, "window": "1d"}}}
	}
	text, err := json.Marshal(has)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(text)
}

// take has a node of one of the versions take tokens, and waits until they count as used.
func (g *viewsGame) take(who, p string) {
	version := uint64(1)
	if g.rolledOut && g.r.IntN(2) == 0 {
		version = g.version
	}
	get := call{who: "eyes", method: "GET", path: "/v1/keys/" + p + "?partition=consumer:" + who}
	b := g.key(g.t, get).Buckets[0]
	bucket, err := keyhash.Parse(b.Bucket)
	if err != nil {
		g.t.Fatal(err)
	}
	item := wire.LeaseItem{Bucket: bucket, Limit: uint32(slices.Index(gamePolicies, p)), Cost: 1,
		Waiting: 1 + g.r.Int64N(4)}
	if p == "opt" {
		item.Kind, item.Used, item.Waiting = wire.KindReport, item.Waiting, 0
	}
	request := wire.LeaseRequest{Node: "n", Boot: 1, Seq: 1, Version: version, Items: []wire.LeaseItem{item}}
	body := string(wire.AppendLeaseRequest(nil, request))
	if w := g.do(call{who: "envoy", method: "POST", path: "/node/v1/leases", body: body}); w.Code != 200 {
		g.t.Fatalf("%d %s", w.Code, w.Body)
	}
	deadline := time.Now().Add(10 * time.Second)
	for slices.ContainsFunc(g.key(g.t, get).Buckets, func(b api.BucketAnswer) bool { return b.Leased > 0 }) {
		if time.Now().After(deadline) {
			g.t.Fatal("tokens of requests stay leased")
		}
	}
}

// report reports a refusal as a node.
func (g *viewsGame) report(who, p string) {
	n := 1 + g.r.Int64N(5)
	at := uint32(slices.Index(gamePolicies, p))
	bucket, err := keyhash.Parse(g.key(g.t, call{who: "eyes", method: "GET",
		path: "/v1/keys/" + p + "?partition=consumer:" + who}).Buckets[0].Bucket)
	if err != nil {
		g.t.Fatal(err)
	}
	m := wire.Decisions{Node: []byte("n"), Version: 1, Counts: []wire.RefusedCount{{Policy: at, Refused: n}},
		Refusals: []wire.Refusal{{Limit: at, Cost: 1,
			CallerCount: wire.CallerCount{Policy: at, Bucket: bucket, Count: n}}}}
	if w := g.postReport(&m); w.Code != 204 {
		g.t.Fatalf("%d %s", w.Code, w.Body)
	}
	g.refused[p] += n
}

// standingText returns the standing before the limits, without the parts that callers must not
// know.
func standingText(all []api.StandingAnswer) string {
	var lines []string
	for _, s := range all {
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprint(s.What, " ", s.Policy)), " "))
	}
	return strings.Join(lines, ", ")
}

// model returns the facts that follow from the acts.
func (g *viewsGame) model(who string) facts {
	known := facts{"entries": fmt.Sprint(g.entries), "access": "open"}
	switch off := g.order == "" && g.state == "off"; {
	case off:
		known["access"] = "off"
	case g.banned[who] || slices.ContainsFunc(gamePolicies, func(p string) bool {
		return g.keyBanned[who+p] && (g.state != "off" || g.order != p)
	}):
		known["access"] = "banned"
	case g.bypassed[who]:
		known["access"] = "exempt"
	}
	for _, p := range gamePolicies {
		known[p+" refused"] = fmt.Sprint(g.refused[p])
		known[p+" banned"] = fmt.Sprint(g.keyBanned[who+p])
		off := g.state == "off" && (g.order == p || g.order == "")
		known[p+" ban lifted"] = fmt.Sprint(g.keyBanned[who+p] && off)
		known[p+" state"] = "enforce"
		if g.state != "" && (g.order == p || g.order == "") {
			known[p+" state"] = g.state
		}
	}
	known["api penalty"] = fmt.Sprint(g.penalised[who])
	return known
}

// answer reads an answer.
func answer[T any](g *viewsGame, c call) T {
	g.t.Helper()
	c.who = "eyes"
	return decoded[T](g.t, g.do(c))
}

// stands returns the standing of a kind before the limits of a policy, nil if there is none.
func (g *viewsGame) stands(all []api.StandingAnswer, what any, p string) *api.StandingAnswer {
	for i := range all {
		if all[i].What == what && all[i].Policy == p {
			return &all[i]
		}
	}
	return nil
}

// views asks all views about a caller.
func (g *viewsGame) views(who string) map[string]facts {
	g.t.Helper()
	all := map[string]facts{"model": g.model(who), "keys": {}, "why": {}, "top": {}, "series": {}, "policies": {},
		"usage": {}, "penalties": {}}
	audit := answer[api.AuditAnswer](g, call{method: "GET", path: "/v1/audit?page_size=200"})
	entries := 0
	for _, e := range audit.Entries {
		if e.By == "root" {
			entries++
		}
	}
	all["audit"] = facts{"entries": fmt.Sprint(entries)}
	for _, p := range gamePolicies {
		k := g.key(g.t, call{who: "eyes", method: "GET", path: "/v1/keys/" + p + "?partition=consumer:" + who})
		all["keys"][p+" key"] = k.Key
		all["keys"][p+" banned"] = fmt.Sprint(k.Ban != nil)
		all["keys"][p+" ban lifted"] = fmt.Sprint(k.Ban != nil && k.Ban.Lifted)
		for _, b := range k.Buckets {
			name := fmt.Sprintf("%s v%d %s ", p, b.Version, b.Limit)
			all["keys"][name+"level"] = fmt.Sprint(b.Level, " of ", b.Burst)
			all["keys"][name+"bucket"] = fmt.Sprint(b.Bucket, " used ", b.Used)
		}
		top := answer[api.TopAnswer](g, call{method: "GET", path: "/v1/top?policy=" + p})
		all["top"][p+" refused"] = fmt.Sprint(top.Refused)
	}
	why := answer[api.DecisionsAnswer](g, call{method: "GET", path: "/v1/decisions?consumer=" + who})
	all["why"]["standing"] = standingText(why.Standing)
	for _, p := range gamePolicies {
		is := g.stands(why.Standing, api.StandingBan, p)
		all["why"][p+" banned"] = fmt.Sprint(is != nil)
		all["why"][p+" ban lifted"] = fmt.Sprint(is != nil && is.Lifted)
	}
	all["why"]["api penalty"] = fmt.Sprint(g.stands(why.Standing, api.StandingPenalty, "api") != nil)
	punished := answer[api.PenaltiesAnswer](g, call{method: "GET",
		path: "/v1/penalties?policy=api&partition=consumer:" + who})
	all["penalties"]["api penalty"] = fmt.Sprint(len(punished.Penalties) > 0)
	g.addSeries(all["series"])
	g.addPolicies(all["policies"])
	g.addUsage(all["usage"], who)
	all["explain"] = g.explained(who, 1)
	if g.rolledOut {
		all["explain the draft"] = g.explained(who, g.version)
	}
	return all
}

func (g *viewsGame) addSeries(known facts) {
	if err := g.past.Tick(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	read := answer[api.SeriesAnswer](g, call{method: "GET", path: "/v1/series?outcome=refused"})
	for _, p := range gamePolicies {
		known[p+" refused"] = "0"
	}
	for _, one := range read.Series {
		known[one.Policy+" refused"] = fmt.Sprint(one.Total)
	}
}

func (g *viewsGame) addPolicies(known facts) {
	for _, one := range answer[api.PoliciesAnswer](g, call{method: "GET", path: "/v1/policies"}).Policies {
		known[one.Name+" state"] = string(one.State)
	}
}

func (g *viewsGame) addUsage(known facts, who string) {
	left := answer[api.UsageAnswer](g, call{method: "GET", path: "/v1/usage",
		header: map[string]string{"X-Api-Key": who}})
	known["standing"] = standingText(left.Standing)
	for _, l := range left.Limits {
		known[fmt.Sprintf("%s v%d %s level", l.Policy, l.Version, l.Limit)] = fmt.Sprint(l.Remaining, " of ", l.Quota)
	}
}

// explained returns the facts in the explanation of a caller's request by a version.
func (g *viewsGame) explained(who string, version uint64) facts {
	body := fmt.Sprintf(`{"url": "/x", "version": %d, "headers": [{"name": "x-api-key", "value": %q}]}`, version, who)
	x := answer[api.ExplainedAnswer](g, call{method: "POST", path: "/v1/explain", body: body,
		header: map[string]string{"Content-Type": "application/json"}})
	known := facts{"access": string(x.Access), "standing": standingText(x.Standing)}
	for _, p := range x.Policies {
		known[p.Name+" key"] = p.Key
		known[p.Name+" state"] = string(p.State)
		for _, b := range p.Limits {
			of := uint64(0)
			if g.rolledOut && p.Name == "log" {
				of = version
			}
			name := fmt.Sprintf("%s v%d %s ", p.Name, of, b.Limit)
			known[name+"level"] = fmt.Sprint(b.Level, " of ", b.Burst)
			known[name+"bucket"] = fmt.Sprint(b.Bucket, " used ", b.Used)
		}
	}
	return known
}

// Whatever operators and nodes do, all views say the same of a caller: the same keys, figures and
// states, the same before the limits, and one entry in the audit for each act. That the game can
// fail is tried with a lie in each fact of each view.
func TestAllViewsSayTheSame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p := newPlane(t)
	g := &viewsGame{plane: p, t: t, r: rand.New(rand.NewPCG(seed, 1)), refused: map[string]int64{}, version: 1,
		banned: map[string]bool{}, bypassed: map[string]bool{}, keyBanned: map[string]bool{},
		penalised: map[string]bool{}}
	g.act("PUT", "/v1/policyset", gameSet(20))
	lies := map[string]bool{}
	untried := func() []string {
		return slices.DeleteFunc([]string{"standing", "entries", "access", "api penalty", "api refused", "log banned",
			"opt key", "here state", "api v0 20 per 1d level"}, func(fact string) bool { return lies[fact] })
	}
	// Chance may keep a fact from several views for as long as thirty turns.
	for turn := 0; turn < 30 || len(untried()) > 0 && turn < 300; turn++ {
		who := []string{"alice", "bob"}[g.r.IntN(2)]
		g.turn(who)
		views := g.views(who)
		if wrong := contradictions(views); len(wrong) > 0 {
			t.Fatalf("of %s: %s", who, strings.Join(wrong, "\n"))
		}
		g.lie(views, lies)
	}
	for _, fact := range untried() {
		t.Errorf("no lie about %s was tried", url.QueryEscape(fact))
	}
}

// lie changes each fact that several views know in one of them, which must come to light.
func (g *viewsGame) lie(views map[string]facts, tried map[string]bool) {
	for view, known := range views {
		for _, fact := range slices.Collect(maps.Keys(known)) {
			others := 0
			for other := range views {
				if _, knows := views[other][fact]; knows && other != view {
					others++
				}
			}
			if others == 0 {
				continue
			}
			value := known[fact]
			known[fact] += "a lie"
			if len(contradictions(views)) == 0 {
				g.t.Fatalf("a lie of %s about %s is believed", view, fact)
			}
			known[fact], tried[fact] = value, true
		}
	}
}
