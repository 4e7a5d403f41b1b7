package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// meshRetries are the retries that Istio gives every route by default, with 429 among the statuses.
const meshRetries = `retry_policy: {retry_on: "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes", ` +
	`num_retries: 2, retriable_status_codes: [503, 429], retry_back_off: {base_interval: 0.001s}}`

// callerOf starts an Envoy that is in front of the Envoy of another world, as a sidecar is, and
// retries requests that are refused there.
func callerOf(t *testing.T, inner *world) *world {
	t.Helper()
	port := regexp.MustCompile(`(?s)(cluster_name: upstream.*?port_value: )\d+`)
	return start(t, setup{
		alone: true, plugin: `{"policyset": {"version": "weir/v1", "policies": []}}`,
		rewrite: func(config string) string {
			config = port.ReplaceAllString(config, fmt.Sprintf("${1}%d", inner.envoys[0].Port))
			const route = "route: {cluster: upstream"
			return strings.Replace(config, route+"}", route+", "+meshRetries+"}", 1)
		},
	})
}

// A caller's Envoy sends a refused request once, whatever the status, so that no caller offends by
// its own sidecar. Where the mark is switched off it is sent three times.
func TestACallingEnvoyDoesNotRetryRefusals(t *testing.T) {
	t.Parallel()
	const policies = `"policies": [
		{"name": "quota", "match": {"paths": ["/quota"]}, "partition": ["client_ip"], "limit": {"quota": 1, "window": "1h"},
			"penalty": {"after": {"refusals": 3, "within": "1m"}}, "mode": "local"},
		{"name": "later", "match": {"paths": ["/later"]}, "partition": [], "limit": {"quota": 1, "window": "1h"},
			"response": {"status": 503, "body": "later"}, "mode": "local"},
		{"name": "worker", "match": {"paths": ["/hang"]}, "partition": ["upstream"], "adaptive": {"min": 2, "max": 2}, "mode": "local"}]}}`
	for headers, sent := range map[string]int{`{}`: 1, `{"envoy_ratelimited": "off"}`: 3} {
		release := make(chan struct{})
		inner := start(t, setup{
			alone: true, plugin: strings.ReplaceAll(`{"policyset": {"version": "weir/v1", "headers": `+headers+`, `+policies, "\n", " "),
			handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hang" {
					<-release
				}
			}),
		})
		outer := callerOf(t, inner)
		url := outer.envoys[0].URL()
		for _, path := range []string{"/quota", "/later"} {
			if got := ask(t, "GET", url+path); got.status != 200 {
				t.Fatalf("%s: %d", path, got.status)
			}
		}
		held := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := send(http.DefaultClient, request("GET", url+"/hang"))
				held <- err
			}()
		}
		inner.awaitBusy(2)
		for path, status := range map[string]int{"/quota": 429, "/later": 503, "/hang": 503} {
			// Envoy writes its log late, and in order: a line shows that those before it are there.
			ask(t, "GET", url+"/before"+path)
			inner.awaitOutput(inner.envoys[0], "/before"+path)
			before := inner.logged(path)
			got := ask(t, "GET", url+path)
			ask(t, "GET", url+"/behind"+path)
			inner.awaitOutput(inner.envoys[0], "/behind"+path)
			marked := got.Header.Get("x-envoy-ratelimited") == "true"
			if n := inner.logged(path) - before; got.status != status || n != sent || marked != (sent == 1) {
				t.Errorf("headers %s, %s: %d, sent %d times, want %d; marked %v", headers, path, got.status, n, sent,
					marked)
			}
		}
		close(release)
		if err := errors.Join(<-held, <-held); err != nil {
			t.Error(err)
		}
	}
}

// logged returns the number of requests for a path in the log of the first Envoy.
func (w *world) logged(path string) int {
	return strings.Count(w.envoys[0].Stdout.String(), " "+path+" ")
}

// awaitBusy waits until the first Envoy's upstream has n requests.
func (w *world) awaitBusy(n int) {
	w.t.Helper()
	w.await(fmt.Sprint("the upstream to have ", n, " requests"), func(ctx context.Context) error {
		stats, err := w.envoys[0].Admin(ctx, "/stats?filter=cluster.upstream.upstream_rq_active")
		if err != nil {
			return err
		}
		if !strings.Contains(string(stats), fmt.Sprintf("upstream_rq_active: %d", n)) {
			return errors.New(string(stats))
		}
		return nil
	})
}
