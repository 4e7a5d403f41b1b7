package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// callsConfig returns the configuration of docs/integrate/rls.md, with Envoy's own ratelimit filter
// in place of Weir's, for ports of this machine.
func callsConfig(t *testing.T, upstream, calls int) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/integrate/rls.md")
	if err != nil {
		t.Fatal(err)
	}
	_, config, found := strings.Cut(string(page), "```yaml\nadmin:")
	config, _, ended := strings.Cut(config, "```\n")
	if !found || !ended {
		t.Fatal("docs/integrate/rls.md has no configuration of Envoy")
	}
	config = "admin:" + config
	for old, by := range map[string]string{
		"{address: 127.0.0.1, port_value: 9901}":    "{address: 127.0.0.1, port_value: 0}",
		"{address: 0.0.0.0, port_value: 10000}":     "{address: 127.0.0.1, port_value: 0}",
		"{address: upstream, port_value: 8081}":     fmt.Sprintf("{address: 127.0.0.1, port_value: %d}", upstream),
		"{address: controlplane, port_value: 8082}": fmt.Sprintf("{address: 127.0.0.1, port_value: %d}", calls),
		// No request passes because a machine is busy.
		"timeout: 0.05s\n": "timeout: 5s\n                      failure_mode_deny: true\n",
	} {
		if strings.Count(config, old) != 1 {
			t.Fatalf("the configuration of docs/integrate/rls.md must have %s once", old)
		}
		config = strings.Replace(config, old, by, 1)
	}
	return config
}

// startWithCalls starts a world with `own` Envoys that have Weir's filter and `calls` Envoys that
// have Envoy's own filter.
func startWithCalls(t *testing.T, own, calls int, policies string) *world {
	t.Helper()
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, setup{alone: true})
	w.redis = redistest.Start(t)
	w.serve.RedisURL = w.redis.URL()
	w.serve.Env = []string{fmt.Sprintf("WEIR_RLS_LISTEN=127.0.0.1:%d", port)}
	w.startControlPlane()
	version := w.apply(policies)
	for i := 1; i < own; i++ {
		w.startEnvoy(fmt.Sprintf("envoy-%d", i+1))
	}
	if own == 0 {
		w.envoys[0].Stop()
		w.envoys = w.envoys[1:]
	} else {
		w.awaitApplied(version)
	}
	w.rewrite = func(string) string { return callsConfig(t, w.upstream.Port, port) }
	for i := range calls {
		w.startEnvoy(fmt.Sprintf("calls-%d", i+1))
	}
	return w
}

// awaitLimited waits until a limit is in force at an Envoy.
func (w *world) awaitLimited(e *stack.Envoy, path string, header ...string) {
	w.t.Helper()
	w.await("a limit at "+e.Name, func(context.Context) error {
		if a := ask(w.t, "GET", e.URL()+path, header...); a.Get("ratelimit-policy") == "" {
			return fmt.Errorf("%d %v", a.status, a.Header)
		}
		return nil
	})
}

// Envoy's own ratelimit filter, configured as docs/integrate/rls.md says, is answered out of Weir's
// policies: descriptors, headers, bodies.
func TestEnvoysOwnFilterAsksWeir(t *testing.T) {
	t.Parallel()
	w := startWithCalls(t, 0, 1, `
version: weir/v1
headers: {standard: draft-11, legacy: x-ratelimit}
policies:
  - name: users
    match: {domain: edge, descriptors: [{name: generic_key, equals: api}, {name: user, present: true, except: [{equals: root}]}]}
    partition: ["descriptor:user"]
    limit: {quota: 2, window: 1h}
    mode: strict
  - {name: keys, partition: ["header:x-api-key"], limit: {quota: 1, window: 1h}}
  - {name: addresses, match: {paths: [/one]}, partition: [client_ip], limit: {quota: 1, window: 1h}}
`)
	url := w.envoys[0].URL()
	w.awaitLimited(w.envoys[0], "/", "x-user", "first")
	for i, c := range []struct {
		path   string
		header []string
		status int
		policy string
	}{
		{"/", []string{"x-user", "bob"}, 200, "users"}, {"/", []string{"x-user", "bob"}, 200, "users"},
		{"/", []string{"x-user", "bob"}, 429, "users"}, {"/", []string{"x-user", "alice"}, 200, "users"},
		{"/", []string{"x-user", "root"}, 200, ""}, {"/", nil, 200, ""},
		{"/", []string{"x-api-key", "k"}, 200, "keys"}, {"/", []string{"x-api-key", "k"}, 429, "keys"},
		{"/one?a=b", nil, 200, "addresses"}, {"/one", nil, 429, "addresses"},
	} {
		a := ask(t, "GET", url+c.path, c.header...)
		if a.status != c.status || !strings.HasPrefix(a.Get("ratelimit-policy"), `"`+c.policy+`"`) && c.policy != "" {
			t.Errorf("%d: %s %v: %d %v, want %d by %s", i, c.path, c.header, a.status, a.Header, c.status, c.policy)
		}
		if c.status == 429 && (a.Get("retry-after") == "" || a.Get("content-type") != "application/problem+json" ||
			!strings.Contains(a.body, `"violated-policies":["`+c.policy+`"]`) || a.Get("x-ratelimit-remaining") != "0") {
			t.Errorf("%d: %v %s", i, a.Header, a.body)
		}
	}
}

// A door counts as an Envoy. Once Envoy's own filter has used up an optimistic bucket, Weir's
// filter on one Envoy lets through at most the slack beyond the burst. While the bucket holds
// tokens, the filter refuses no request.
func TestADoorCountsAsANode(t *testing.T) {
	t.Parallel()
	w := startWithCalls(t, 1, 1, `
version: weir/v1
policies:
  - {name: both, match: {paths: [/both]}, partition: ["header:x-api-key"], limit: {quota: 100, window: 24h}, mode: optimistic}
`)
	own, calls := w.envoys[0].URL()+"/both", w.envoys[1].URL()+"/both"
	w.awaitLimited(w.envoys[1], "/both", "x-api-key", "nobody")
	w.awaitLimited(w.envoys[0], "/both", "x-api-key", "nobody")
	passed := func(n int, url, key string) (count int) {
		for range n {
			if ask(t, "GET", url, "x-api-key", key).status == 200 {
				count++
			}
		}
		return count
	}
	if first, then := passed(120, calls, "a"), passed(120, own, "a"); first != 100 || then > 50 {
		t.Errorf("%d passed at the door and then %d at the filter, of 100 that may be passed by half", first, then)
	}
	// Half of it through each, and the rest through either.
	filter, door := passed(50, own, "b"), passed(40, calls, "b")
	if filter != 50 || door != 40 {
		t.Errorf("%d of 50 passed at the filter, %d of 40 at the door, of a bucket of 100", filter, door)
	}
	nodes, err := w.controlPlane.Call(w.ctx, "GET", "/v1/nodes", nil)
	if err != nil || strings.Count(string(nodes.Body), `"boot"`) != 1 {
		t.Errorf("the nodes are %s, %v", nodes.Body, err)
	}
}
