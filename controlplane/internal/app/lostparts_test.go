package app_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/redistest"
)

const tieredSet = `version: weir/v1
identity: {consumer: [{header: x-api-key}], default_tier: free}
tiers: [gold, free]
policies:
  - {name: a, partition: [consumer], limits: {gold: {quota: 10, window: 1h}, free: {quota: 5, window: 1h}}}
`

// keeps returns the state that must not be lost, as a control plane answers it.
func (p *plane) keeps() (all []string) {
	set := p.do("GET", "/v1/policyset", nil)
	note := func(what string, a answer, texts ...string) {
		for _, text := range texts {
			what += fmt.Sprint(" ", strings.Contains(string(a.body), text))
		}
		all = append(all, fmt.Sprint(what, " ", a.status))
	}
	note("policy set", set, "quota: 10")
	note("ban", p.do("GET", "/v1/consumers/banned", nil), `"floods"`)
	note("bypass", p.do("GET", "/v1/consumers/vip", nil), `"pays"`)
	note("tier", p.do("GET", "/v1/consumers/gold", nil), `"tier":"gold"`)
	note("order", p.do("GET", "/v1/enforcement", nil), `"drill"`)
	note("banned key", p.do("GET", "/v1/keys/a?partition=consumer:thief", nil), `"steals"`)
	var m wire.Consumers
	a := p.do("GET", "/node/v1/snapshot?node=n&boot=1&wait=5s&consumers=1&after="+
		strings.Trim(set.header.Get("ETag"), `"`), nil)
	err := wire.DecodeConsumers(a.body, &m)
	return append(all, fmt.Sprintf("%d bans for nodes, %v", bans(m), err))
}

// Each key that Weir writes is deleted, one after the other, as an evicting Redis would. Within
// seconds the running control plane, and a control plane that starts then, have its content again.
func TestEachKeyIsLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, "", server.URL())
	p.until("/readyz/store", http.StatusOK)
	for _, c := range []struct{ method, path, body string }{
		{"PUT", "/v1/policyset", strings.Replace(tieredSet, "quota: 10", "quota: 9", 1)},
		{"PUT", "/v1/policyset", tieredSet},
		{"PUT", "/v1/consumers/banned", `{"banned": {"reason": "floods"}}`},
		{"PUT", "/v1/consumers/vip", `{"bypass": {"reason": "pays"}}`},
		{"PUT", "/v1/consumers/gold", `{"tier": "gold"}`},
		{"PUT", "/v1/enforcement", `{"orders": [{"state": "shadow", "reason": "drill"}]}`},
		{"POST", "/v1/keys/a/ban?partition=consumer:thief", `{"reason": "steals"}`},
	} {
		header := []string{"If-Match", "*"}
		if c.body[0] == '{' {
			header = append(header, "Content-Type", "application/json")
		}
		if a := p.do(c.method, c.path, []byte(c.body), header...); a.status/100 != 2 {
			t.Fatalf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	before := p.keeps()
	t.Log(strings.Join(before, "\n"))
	var keys []string
	for line := range strings.Lines(server.Do("KEYS", "weir:*")) {
		key := strings.TrimSpace(line)
		marker := len(key) > len("weir:{00}") && key[8] == '}' && key[6:8] != "00" // One of 64 is enough.
		if strings.HasPrefix(key, "weir:") && !marker {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	t.Log(keys)
	if !slices.Contains(keys, "weir:{meta}:documents") || !slices.Contains(keys, "weir:{consumers}:records") {
		t.Fatal("these are not the keys of Weir")
	}
	for _, key := range keys {
		server.Do("DEL", key)
		var got [2][]string
		for begin := time.Now(); time.Since(begin) < 30*time.Second; { // Seconds, where no race detector runs.
			fresh := start(t, "", server.URL())
			fresh.until("/readyz/store", http.StatusOK)
			got = [2][]string{p.keeps(), fresh.keeps()}
			fresh.stop()
			if slices.Equal(got[0], before) && slices.Equal(got[1], before) {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		for i, of := range []string{"the control plane", "a new one"} {
			if !slices.Equal(got[i], before) {
				t.Errorf("without %s %s has\n%s", key, of, strings.Join(got[i], "\n"))
			}
		}
	}
}
