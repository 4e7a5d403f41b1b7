// Package ackgame makes changes of all kinds at control planes, at random, and knows which of them
// were acknowledged: in the end each of those is so, at every control plane.
package ackgame

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Call asks a control plane; an error is an answer that did not come.
type Call func(method, path string, body []byte, header ...string) (status int, answer []byte, err error)

// Set is a policy set whose quota of policy a the game changes.
const Set = `version: weir/v1
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
tiers: [free, gold]
policies:
  - {name: a, partition: [consumer], limit: {quota: %d, window: 1h}}
  - {name: b, partition: [consumer], limit: {quota: 10, window: 1h}}
`

// Game has the acknowledged changes, by subject. A change that was refused or got no answer may
// have been made or not, and is not in it.
type Game struct {
	T      testing.TB
	Random *rand.Rand
	// Planes are the control planes, the first of which the game counts as number 0.
	Planes []Call
	// Set makes a policy set of a quota of policy a.
	Set func(quota int) string

	want map[string]string
	// held are changes that a control plane has acknowledged as not durable yet, by subject.
	held map[string]int
	// Made counts acknowledged changes, Held the acknowledged changes that were not durable, and
	// Refused the changes without an acknowledgement.
	Made, Held, Refused int
}

// outcome is how a change ended.
type outcome int

const (
	refused outcome = iota
	made
	// unknown: it may have been made.
	unknown
)

// change makes a change through a control plane, and notes the new state if it is acknowledged.
func (g *Game) change(plane int, about, so, method, path, body string) outcome {
	g.T.Helper()
	kind := "application/json"
	if strings.HasPrefix(path, "/v1/policyset") {
		kind = "application/yaml"
	}
	if g.want == nil {
		g.want, g.held = map[string]string{}, map[string]int{}
	}
	status, answer, err := g.Planes[plane](method, path, []byte(body), "If-Match", "*", "Content-Type", kind)
	switch {
	case err != nil || status/100 == 5:
		delete(g.want, about)
		delete(g.held, about)
		g.Refused++
		return unknown
	case status/100 == 2:
		g.Made++
		g.want[about] = so
		delete(g.held, about)
		if strings.Contains(string(answer), `"durable":false`) {
			g.Held++
			g.held[about] = plane
		}
		return made
	case status != http.StatusNotFound && status != http.StatusConflict:
		g.T.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return refused
}

// Begin puts a policy set into force.
func (g *Game) Begin() {
	g.T.Helper()
	g.change(0, "quota", "10", "PUT", "/v1/policyset", g.Set(10))
	g.want["rollout"] = "no"
}

// Draw makes a change of any kind through any control plane.
func (g *Game) Draw() {
	g.T.Helper()
	p, who := g.Random.IntN(len(g.Planes)), fmt.Sprint("c", g.Random.IntN(6))
	switch g.Random.IntN(9) {
	case 0, 1:
		g.change(p, "ban "+who, "yes", "POST", "/v1/keys/a/ban?partition=consumer:"+who, `{"reason": "x"}`)
	case 2:
		g.change(p, "ban "+who, "no", "POST", "/v1/keys/a/unban?partition=consumer:"+who, ``)
	case 3, 4:
		bodies := []string{`{"tier": "gold"}`, `{"banned": {"reason": "x"}}`, `{"bypass": {"reason": "x"}}`,
			`{"overrides": [{"policy": "a", "limit": {"quota": 7, "window": "1h"}}]}`}
		body := bodies[g.Random.IntN(len(bodies))]
		g.change(p, "consumer "+who, strings.SplitN(body, `"`, 3)[1], "PUT", "/v1/consumers/"+who, body)
	case 5:
		g.change(p, "consumer "+who, "no", "DELETE", "/v1/consumers/"+who, "")
	case 6:
		quota := 10 + g.Random.IntN(1000)
		g.change(p, "quota", fmt.Sprint(quota), "PUT", "/v1/policyset", g.Set(quota))
	case 7:
		g.rollOut(p)
	default:
		state := []string{"off", "shadow"}[g.Random.IntN(2)]
		order := fmt.Sprintf(`{"orders": [{"policy": "b", "state": %q, "reason": "x"}]}`, state)
		g.change(p, "order", state, "PUT", "/v1/enforcement", order)
	}
}

// rollOut gives a policy set to some nodes, or takes it back, or gives it to all.
func (g *Game) rollOut(plane int) {
	g.T.Helper()
	quota, underWay := g.want["rollout"]
	switch {
	case !underWay || g.Random.IntN(3) == 0:
		g.change(plane, "rollout", "no", "DELETE", "/v1/rollout", "")
	case quota == "no":
		n := 10 + g.Random.IntN(1000)
		g.change(plane, "rollout", fmt.Sprint(n), "PUT", "/v1/policyset?nodes=50%25", g.Set(n))
	default:
		switch g.change(plane, "rollout", "no", "PUT", "/v1/rollout", `{"nodes": "100%"}`) {
		case made:
			g.want["quota"] = quota
		case unknown:
			delete(g.want, "quota")
		}
	}
}

// Dies notes that a control plane dies: changes that it alone holds, and has acknowledged as such,
// die with it.
func (g *Game) Dies(plane int) {
	for about, at := range g.held {
		if at == plane {
			delete(g.held, about)
			delete(g.want, about)
		}
	}
}

// Bans returns, for each caller whose state is known, whether its last acknowledged change was a
// ban that was not taken back: then nodes refuse it with 403. It leaves out a caller with a ban and
// a bypass.
func (g *Game) Bans() map[string]bool {
	banned := map[string]bool{}
	for about, so := range g.want {
		who, isConsumer := strings.CutPrefix(about, "consumer ")
		if key, known := g.want["ban "+who]; isConsumer && known && so != "bypass" {
			banned[who] = so == "banned" || key == "yes"
		}
	}
	return banned
}

// Wrong returns the acknowledged changes that a control plane does not have. If there are none, all
// changes are durable.
func (g *Game) Wrong() (wrong []string) {
	for about, so := range g.want {
		for i, call := range g.Planes {
			if got := is(call, about); got != so {
				wrong = append(wrong, fmt.Sprintf("%s: %s at control plane %d, acknowledged %s", about, got, i, so))
			}
		}
	}
	if len(wrong) == 0 {
		clear(g.held)
	}
	slices.Sort(wrong)
	return wrong
}

// String says how many changes there were.
func (g *Game) String() string {
	return fmt.Sprintf("%d changes were acknowledged, %d of them as not durable, and %d were not", g.Made, g.Held,
		g.Refused)
}

// is returns the present state of a subject, as a control plane answers it.
func is(call Call, about string) string {
	kind, who, _ := strings.Cut(about, " ")
	path := map[string]string{
		"ban": "/v1/keys/a?partition=consumer:" + who, "consumer": "/v1/consumers/" + who, "order": "/v1/enforcement",
		"quota": "/v1/policyset", "rollout": "/v1/rollout",
	}[kind]
	status, answer, err := call("GET", path, nil)
	switch {
	case err != nil:
		return err.Error()
	case kind == "quota":
		return quotaIn(answer)
	case status == http.StatusNotFound:
		return "no"
	}
	var got struct {
		Version        int
		Ban            *struct{}
		Banned, Bypass *struct{}
		Tier           string
		Overrides      []struct{ Policy string }
		Orders         []struct{ State string }
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return err.Error()
	}
	switch {
	case kind == "rollout":
		if _, answer, err = call("GET", fmt.Sprint("/v1/versions/", got.Version), nil); err != nil {
			return err.Error()
		}
		return quotaIn(answer)
	case got.Ban != nil:
		return "yes"
	case got.Banned != nil:
		return "banned"
	case got.Bypass != nil:
		return "bypass"
	case len(got.Overrides) == 1 && got.Overrides[0].Policy == "a":
		return "overrides"
	case kind == "consumer" && got.Tier == "gold":
		return "tier"
	case len(got.Orders) == 1:
		return got.Orders[0].State
	}
	return "no"
}

// quotaIn returns the quota of policy a in an answer that has a policy set.
func quotaIn(answer []byte) string {
	_, rest, _ := strings.Cut(string(answer), "name: a, partition: [consumer], limit: {quota: ")
	quota, _, _ := strings.Cut(rest, ",")
	return quota
}
