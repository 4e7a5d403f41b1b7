package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/otlptest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// The values that a client, and who administers it, gives in this test. None is part of any other
// word.
const (
	keyInHeader   = "xk7f3q9-header-key"
	keyInQuery    = "xk7f3q9-query-key"
	keyInCookie   = "xk7f3q9-cookie-key"
	keyRefused    = "xk7f3q9-refused-key"
	keyWithTier   = "xk7f3q9-premium-key"
	wrongToken    = "xk7f3q9-wrong-token"
	keysOfTheTest = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: x-api-key}, {query: key}, {cookie: key}], tier: [assignment], default_tier: free}
policies:
  - {name: leased, match: {paths: [/keys]}, partition: [consumer], limits: {free: {quota: 5, window: 24h}, premium: {quota: 50, window: 24h}}}
  - {name: strict, match: {paths: [/keys]}, partition: ["header:x-api-key"], limit: {quota: 3, window: 24h}, mode: strict}
  - {name: local, match: {paths: [/keys]}, partition: ["query:key", "cookie:key"], limit: {quota: 100, window: 24h}, mode: local}
`
)

// API keys and tokens are used in every possible way. Then they are only in the places that were
// given them: not in Redis, nor in the logs, metrics and traces of any process.
func TestKeysAndTokensStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	collector := otlptest.Start(t)
	w := start(t, setup{alone: true})
	redis := redistest.Start(t)
	w.serve.RedisURL = redis.URL()
	w.serve.Env = []string{"WEIR_LOG_LEVEL=debug", "WEIR_OTLP_ENDPOINT=" + collector.URL()}
	w.startControlPlane()
	w.awaitApplied(w.apply(keysOfTheTest))
	w.useKeys()
	w.await("a refusal to be reported", func(context.Context) error {
		if answer := w.get("/v1/decisions"); !strings.Contains(string(answer.Body), `"strict"`) {
			return fmt.Errorf("there is %s", answer.Body)
		}
		return nil
	})
	places := map[string]string{
		"the decisions": string(w.get("/v1/decisions").Body), "the heaviest callers": string(w.get("/v1/top").Body),
		"the audit": string(w.get("/v1/audit").Body),
		"Redis":     everythingIn(redis), "the control plane's metrics": w.page(w.controlPlane.URL() + "/metrics"),
		"Envoy's log":           w.envoys[0].Stderr.String(),
		"Envoy's metrics":       w.page(fmt.Sprintf("http://127.0.0.1:%d/stats/prometheus", w.envoys[0].AdminPort)),
		"Envoy's configuration": w.page(fmt.Sprintf("http://127.0.0.1:%d/config_dump", w.envoys[0].AdminPort)),
	}
	w.controlPlane.Stop() // It sends its last spans.
	places["the control plane's log"], places["traces"] = w.controlPlane.Stderr.String(), string(collector.Raw())
	// Each place shows the acts of the test; otherwise nothing could be found in it.
	for place, sign := range map[string]string{
		"the decisions": "strict", "the heaviest callers": "callers", "the audit": "consumer.put",
		"Redis": ":b:", "the control plane's metrics": `weir_tokens_granted_total{mode="leased",policy="leased"}`, "Envoy's log": "weir",
		"Envoy's metrics": "weir_decisions", "Envoy's configuration": "WEIR_NODE_TOKEN",
		"the control plane's log": "consumer changed", "traces": "/node/v1/leases",
	} {
		if !strings.Contains(places[place], sign) {
			t.Errorf("%s has no %q, so nothing is shown:\n%.2000s", place, sign, places[place])
		}
	}
	mustLack(t, places, "xk7f3q9", adminToken, nodeToken)
}

// The same for the embedded store's file.
func TestKeysAndTokensAreNotInTheFile(t *testing.T) {
	t.Parallel()
	w := start(t, setup{embedded: true, policies: keysOfTheTest})
	w.useKeys()
	w.controlPlane.Stop() // It saves its state.
	places := map[string]string{}
	err := filepath.WalkDir(w.serve.DataDir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var content []byte
			content, err = os.ReadFile(path)
			places[filepath.Base(path)] = string(content)
		}
		return err
	})
	if err != nil || len(places) == 0 {
		t.Fatalf("%d files, %v", len(places), err)
	}
	mustLack(t, places, "xk7f3q9", adminToken, nodeToken)
}

func mustLack(t *testing.T, places map[string]string, secrets ...string) {
	t.Helper()
	for place, content := range places {
		for _, secret := range secrets {
			if at := strings.Index(content, secret); at >= 0 {
				t.Errorf("%s has %s: …%q…", place, secret, content[max(0, at-100):min(len(content), at+100)])
			}
		}
	}
}

// useKeys sends requests with keys until some are refused, assigns a tier to a consumer, and tries
// a wrong token.
func (w *world) useKeys() {
	w.t.Helper()
	url := w.envoys[0].URL() + "/keys"
	for range 8 {
		ask(w.t, http.MethodGet, url, "x-api-key", keyInHeader)
		ask(w.t, http.MethodGet, url+"?key="+keyInQuery)
		ask(w.t, http.MethodGet, url, "cookie", "key="+keyInCookie)
	}
	answer := w.call(http.MethodPut, "/v1/consumers/"+keyWithTier+"?source=header:x-api-key", `"0"`, `{"tier": "premium"}`)
	if answer.Status != http.StatusOK {
		w.t.Fatalf("a tier cannot be assigned: %d %s", answer.Status, answer.Body)
	}
	w.call(http.MethodPut, "/v1/consumers/"+keyWithTier+"?source=header:x-api-key", `"77"`, `{"tier": "premium"}`)
	w.call(http.MethodGet, "/v1/consumers/"+keyInHeader+"?source=header:x-api-key", "", "")
	w.call(http.MethodGet, "/v1/nothing/"+keyInHeader, "", "")
	w.await("a key to be refused", func(context.Context) error {
		if a := ask(w.t, http.MethodGet, url, "x-api-key", keyRefused); a.status != http.StatusTooManyRequests {
			return fmt.Errorf("it gets %d", a.status)
		}
		return nil
	})
	ask(w.t, http.MethodGet, url, "x-api-key", keyWithTier)
	wrong := request(http.MethodGet, w.controlPlane.URL()+"/v1/nodes", "Authorization", "Bearer "+wrongToken)
	if a, err := send(http.DefaultClient, wrong); err != nil || a.status != http.StatusUnauthorized {
		w.t.Errorf("a wrong token gets %d, %v", a.status, err)
	}
}

// page returns the content at an address.
func (w *world) page(url string) string {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.within(patience), http.MethodGet, url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %d, %v", url, response.StatusCode, err)
	}
	return string(body)
}

// everythingIn returns all keys and values of a Redis as text.
func everythingIn(redis *redistest.Server) string {
	var all strings.Builder
	reads := map[string][]string{
		"+string": {"GET", ""}, "+hash": {"HGETALL", ""}, "+zset": {"ZRANGE", "", "0", "-1"}, "+set": {"SMEMBERS", ""},
		"+list": {"LRANGE", "", "0", "-1"}, "+stream": {"XRANGE", "", "-", "+"},
	}
	for _, key := range strings.Split(redis.Do("KEYS", "*"), "\n") {
		read := append([]string{}, reads[redis.Do("TYPE", key)]...)
		read[1] = key // A type that is not here fails.
		fmt.Fprintf(&all, "%s = %s\n", key, redis.Do(read...))
	}
	return all.String()
}
