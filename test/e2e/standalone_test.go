package e2e

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

func TestTheFilterWorksAlone(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true, plugin: `{"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "alone", "match": {"paths": ["/alone"]}, "partition": ["client_ip"], "limit": {"quota": 5, "window": "1h"}, "mode": "leased"}]}}`})
	got := load{url: w.envoys[0].URL() + "/alone", clients: 5, total: 20}.run(w.ctx)
	if got.statuses[200] != 5 || got.statuses[429] != 15 {
		t.Errorf("of 20 requests: %s; the limit is 5", got)
	}
	w.awaitLog(w.envoys[0], "policy alone is leased but there is no control plane")
}

// The filter's counters come out of Prometheus with the policy and the outcome as labels, by the
// tags in envoy.yaml, and with nothing that a client sent.
func TestDecisionsAreCountedByPolicyAndOutcome(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true, plugin: `{"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "a.b", "match": {"paths": ["/a"]}, "partition": ["header:x-who"], "limit": {"quota": 2, "window": "1h"}, "mode": "local"},` +
		`{"name": "watched", "match": {"paths": ["/a"]}, "partition": [], "limit": {"quota": 1, "window": "1h"}, "mode": "local", "enforcement": "shadow"}]}}`})
	for range 5 {
		ask(t, "GET", w.envoys[0].URL()+"/a", "x-who", "somebody")
	}
	for _, want := range []string{
		`weir_decisions{weir_policy="a.b",weir_outcome="allowed"} 2`,
		`weir_decisions{weir_policy="a.b",weir_outcome="refused"} 3`,
		`weir_decisions{weir_policy="watched",weir_outcome="shadow_allowed"} 1`,
		`weir_decisions{weir_policy="watched",weir_outcome="shadow_refused"} 1`,
		`weir_requests_refused{} 3`,
	} {
		w.await(want, func(ctx context.Context) error {
			stats, err := w.envoys[0].Admin(ctx, "/stats/prometheus")
			switch {
			case err != nil:
				return err
			case strings.Contains(string(stats), "somebody"):
				t.Fatal("a client's name is in the metrics")
			case !strings.Contains(string(stats), want):
				return errors.New("not there yet")
			}
			return nil
		})
	}
}

// The inline policy set counts until the control plane has answered.
func TestTheInlinePolicySetCoversTheStart(t *testing.T) {
	t.Parallel()
	w := start(t, setup{alone: true, plugin: `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "weir"}, ` +
		`"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "meanwhile", "match": {"paths": ["/a"]}, "partition": [], "limit": {"quota": 5, "window": "24h"}, "mode": "local"}]}}`})
	got := load{url: w.envoys[0].URL() + "/a", clients: 1, total: 20}.run(w.ctx)
	if got.statuses[200] != 5 {
		t.Errorf("before the control plane: %s; the limit is 5", got)
	}
	w.startControlPlane()
	w.awaitApplied(w.apply(`
version: weir/v1
policies:
  - {name: later, match: {paths: [/a]}, partition: [], limit: {quota: 7, window: 24h}, mode: leased}
`))
	got = load{url: w.envoys[0].URL() + "/a", clients: 1, total: 20}.run(w.ctx)
	if got.statuses[200] != 7 {
		t.Errorf("with the control plane: %s; the limit is 7", got)
	}
}

// A mistake in the plugin configuration keeps Envoy from starting, and its log says where the
// mistake is.
func TestAWrongPluginConfigurationIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, plugin, want string }{
		{"a misspelt field", `{"control_plain": {}}`, "control_plain"},
		{"a limit that is none", `{"policyset": {"version": "weir/v1", "policies": [{"name": "a", "partition": [], "limit": {"quota": -1, "window": "1m"}}]}}`,
			"policyset.policies[0].limit.quota"},
		{"a mode that does not fit", `{"policyset": {"version": "weir/v1", "policies": [{"name": "a", "partition": [], ` +
			`"limit": {"quota": 1, "window": "1m"}, "mode": "optimistic", "algorithm": "sliding_log"}]}}`, "policyset.policies[0].mode"},
		{"no JSON", `control_plane`, "JSON"},
		{"a token that Envoy does not pass on", `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_OTHER_TOKEN"}, "authority": "weir"}}`,
			"WEIR_OTHER_TOKEN"},
		{"nothing to do", `{}`, "control_plane"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{t: t, ctx: t.Context(), setup: setup{plugin: c.plugin}, upstream: &stack.Upstream{Port: 1}}
			w.serve.Port = 1
			e, err := stack.StartEnvoy(w.within(patience), w.envoyOptions("envoy-1"))
			if err == nil {
				e.Stop()
				t.Fatal("Envoy started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the log does not say %s:\n%v", c.want, err)
			}
		})
	}
}

// Headers that only a limiter may set do not reach the upstream in a client's words. The upstream's
// own headers stay if they are stricter.
func TestForgedHeadersDoNotReachTheUpstream(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
policies:
  - {name: a, partition: [], limit: {quota: 100, window: 1m}, mode: local}
`})
	a := ask(t, http.MethodPost, w.envoys[0].URL()+"/a", "RateLimit", `"forged";r=9`, "X-RateLimit-Remaining", "9", "X-Harmless", "kept")
	if a.status != 200 || strings.Contains(strings.ToLower(a.body), "ratelimit") ||
		!strings.Contains(a.body, "X-Harmless") {
		t.Errorf("the upstream got %d %s", a.status, a.body)
	}
}

func TestGRPCCallersGetAStatusOfTheirs(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
policies:
  - {name: a, partition: [], limit: {quota: 1, window: 24h}, mode: local}
`})
	call := func(contentType string) answer {
		return ask(t, http.MethodPost, w.envoys[0].URL()+"/service/Method", "Content-Type", contentType, "TE",
			"trailers")
	}
	call("application/grpc")
	if a := call("application/grpc-web"); a.status != 200 || !strings.Contains(a.body, "grpc-status:8\r\n") ||
		!strings.HasPrefix(a.Get("Content-Type"), "application/grpc-web") || !strings.Contains(a.body, "used up") {
		t.Errorf("a browser is refused with %d %v %q", a.status, a.Header, a.body)
	}
	if a := call("application/grpc"); !strings.Contains(a.Get("Grpc-Message"), "used up") || a.status != 200 ||
		a.Get("Grpc-Status") != "8" || a.body != "" || a.Get("Retry-After") == "" {
		t.Errorf("refused with %d, grpc-status %q, Retry-After %q, body %q", a.status, a.Get("Grpc-Status"),
			a.Get("Retry-After"), a.body)
	}
}

// The decision is in the access log, and the counters agree with the clients' answers.
func TestDecisionsAreCountedAndLogged(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
policies:
  - {name: a.b, match: {paths: [/a]}, partition: [], limit: {quota: 5, window: 24h}, mode: local}
`})
	got := load{url: w.envoys[0].URL() + "/a", clients: 1, total: 20}.run(w.ctx)
	got.mustBe(t, 200, 429)
	for outcome, want := range map[string]int64{"allowed": got.statuses[200], "refused": got.statuses[429]} {
		w.awaitCounter(w.envoys[0], "weir.requests."+outcome, want)
	}
	w.awaitOutput(w.envoys[0], "weir=refused policy=a.b reason=quota")
}
