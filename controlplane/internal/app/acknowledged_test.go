package app_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/redistest"
)

var acknowledgedSteps = flag.Int("steps", 30, "how many steps the game of acknowledged changes has")

// game is what was acknowledged, by what it is about. What was refused or got no answer may have
// been made or not, and is not in it.
type game struct {
	t      *testing.T
	random *rand.Rand
	server *redistest.Server
	planes [2]*plane
	want   map[string]string
	// refused counts changes that were not acknowledged, held those acknowledged as not durable.
	made, refused, held int
}

const gameSet = `version: weir/v1
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
tiers: [free, gold]
policies:
  - {name: a, partition: [consumer], limit: {quota: %d, window: 1h}}
  - {name: b, partition: [consumer], limit: {quota: 10, window: 1h}}
`

// change makes a change through a control plane, and notes what is so if it is acknowledged.
func (g *game) change(p *plane, about, so, method, path, body string) {
	kind := "application/json"
	if path == "/v1/policyset" {
		kind = "application/yaml"
	}
	a, err := p.try(method, path, []byte(body), "If-Match", "*", "Content-Type", kind)
	switch {
	case err != nil || a.status/100 == 5:
		delete(g.want, about)
		g.refused++
	case a.status/100 == 2:
		g.made++
		g.want[about] = so
		if strings.Contains(string(a.body), `"durable":false`) {
			g.held++
		}
	case a.status != http.StatusNotFound && a.status != http.StatusConflict:
		g.t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
}

// step changes something, or lets something happen to the store, while which more may be changed.
func (g *game) step() {
	switch g.random.IntN(12) {
	case 0:
		g.server.Do("FLUSHALL")
	case 1: // It comes back empty.
		g.server.Kill()
		for range 1 + g.random.IntN(3) {
			g.draw()
		}
		g.server.Restart()
	case 2:
		g.server.Pause()
		g.draw()
		g.server.Resume()
	default:
		g.draw()
	}
}

// draw makes a change of any kind through any control plane.
func (g *game) draw() {
	p, who := g.planes[g.random.IntN(2)], fmt.Sprint("c", g.random.IntN(6))
	switch g.random.IntN(8) {
	case 0, 1:
		g.change(p, "ban "+who, "yes", "POST", "/v1/keys/a/ban?partition=consumer:"+who, `{"reason": "x"}`)
	case 2:
		g.change(p, "ban "+who, "no", "POST", "/v1/keys/a/unban?partition=consumer:"+who, ``)
	case 3, 4:
		body := []string{`{"tier": "gold"}`, `{"banned": {"reason": "x"}}`, `{"bypass": {"reason": "x"}}`}[g.random.IntN(3)]
		g.change(p, "consumer "+who, strings.SplitN(body, `"`, 3)[1], "PUT", "/v1/consumers/"+who, body)
	case 5:
		g.change(p, "consumer "+who, "no", "DELETE", "/v1/consumers/"+who, "")
	case 6:
		quota := 10 + g.random.IntN(1000)
		g.change(p, "quota", fmt.Sprint(quota), "PUT", "/v1/policyset", fmt.Sprintf(gameSet, quota))
	default:
		state := []string{"off", "shadow"}[g.random.IntN(2)]
		order := fmt.Sprintf(`{"orders": [{"state": %q, "reason": "x"}]}`, state)
		g.change(p, "order", state, "PUT", "/v1/enforcement", order)
	}
}

// is is what a control plane says now of what was changed.
func (g *game) is(p *plane, about string) string {
	kind, who, _ := strings.Cut(about, " ")
	var got struct {
		Ban            *struct{}
		Banned, Bypass *struct{}
		Tier           string
		Orders         []struct{ State string }
	}
	path := map[string]string{
		"ban": "/v1/keys/a?partition=consumer:" + who, "consumer": "/v1/consumers/" + who, "order": "/v1/enforcement",
		"quota": "/v1/policyset",
	}[kind]
	a := p.do("GET", path, nil)
	if kind == "quota" {
		_, rest, _ := strings.Cut(string(a.body), "limit: {quota: ")
		quota, _, _ := strings.Cut(rest, ",")
		return quota
	}
	if a.status == http.StatusNotFound {
		return "no"
	}
	if err := json.Unmarshal(a.body, &got); err != nil {
		return err.Error()
	}
	switch {
	case got.Ban != nil:
		return "yes"
	case got.Banned != nil:
		return "banned"
	case got.Bypass != nil:
		return "bypass"
	case kind == "consumer" && got.Tier == "gold":
		return "tier"
	case len(got.Orders) == 1:
		return got.Orders[0].State
	}
	return "no"
}

// Two control planes take changes of all kinds at random while their Redis is emptied, killed and
// stopped: in the end everything that was acknowledged, and not overtaken, is so on both.
func TestAcknowledgedIsKept(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	server := redistest.Start(t)
	g := &game{t: t, random: rand.New(rand.NewPCG(seed, 0)), server: server, want: map[string]string{}}
	for i := range g.planes {
		g.planes[i] = start(t, "", server.URL())
		g.planes[i].until("/readyz/store", http.StatusOK)
	}
	g.change(g.planes[0], "quota", "10", "PUT", "/v1/policyset", fmt.Sprintf(gameSet, 10))
	<-g.planes[1].poll(0)
	for range *acknowledgedSteps {
		g.step()
		// Until both have read it: what one alone has read dies with Redis if that dies at once.
		time.Sleep(time.Duration(300+g.random.IntN(400)) * time.Millisecond)
	}
	var wrong []string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		wrong = nil
		for about, so := range g.want {
			for i, p := range g.planes {
				if got := g.is(p, about); got != so {
					wrong = append(wrong, fmt.Sprintf("%s: %s at control plane %d, acknowledged %s", about, got, i, so))
				}
			}
		}
		if len(wrong) == 0 || time.Now().After(deadline) {
			break
		}
	}
	slices.Sort(wrong)
	t.Logf("%d changes were acknowledged, %d of them as not durable, %d were not", g.made, g.held, g.refused)
	if len(wrong) > 0 {
		t.Errorf("seed %d: %s", seed, strings.Join(wrong, "\n"))
	}
	if g.made == 0 {
		t.Errorf("only %d changes were acknowledged", g.made)
	}
}
