package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// shopEnvoy is an Envoy with the filters cors and Weir in the order given, by the recipe of
// docs/run/istio.md: every route allows a page of one other origin, and exposes the headers that
// scripts may read.
const shopEnvoy = `
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: %[1]s}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: ingress
                http_filters:
%[2]s
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      typed_per_filter_config:
                        envoy.filters.http.cors:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy
                          allow_origin_string_match: [{exact: "%[3]s"}]
                          allow_methods: "GET, POST"
                          allow_headers: "x-api-key"
                          expose_headers: "retry-after, ratelimit, ratelimit-policy"
                      routes:
                        - {match: {prefix: "/"}, route: {cluster: shop}}
  clusters:
    - name: shop
      load_assignment:
        cluster_name: shop
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[4]s}}}}]}]
`

const corsFilter = `                  - name: envoy.filters.http.cors
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}`

// weirFilter is the built filter, alone, with two requests an hour for each key.
const weirFilter = `                  - name: weir
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
                      config:
                        name: weir
                        vm_config: {runtime: envoy.wasm.runtime.v8, code: {local: {filename: %q}}}
                        configuration:
                          "@type": type.googleapis.com/google.protobuf.StringValue
                          value: '{"policyset": {"version": "weir/v1", %s"policies": [{"name": "buyers",
                            "partition": ["header:x-api-key"], "if_absent": "shared", "mode": "local",
                            "limit": {"quota": 2, "window": "1h"}}]}}'`

// startShop starts such an Envoy before the server of the page, and returns its address.
func startShop(t *testing.T, filters, page string) string {
	t.Helper()
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(page, "http://"), ":")
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, shopEnvoy, ports[0], filters, page, port), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(cacheDir(t), "bin", "envoy")
	envoy := exec.Command(binary, "--config-path", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	var log strings.Builder
	envoy.Stderr = &log
	if err := envoy.Start(); err != nil {
		t.Fatalf("%v: make setup installs Envoy", err)
	}
	t.Cleanup(func() {
		envoy.Process.Kill()
		if envoy.Wait(); t.Failed() {
			t.Log(log.String())
		}
	})
	url := "http://127.0.0.1:" + ports[0]
	for end := time.Now().Add(startTime); ; time.Sleep(50 * time.Millisecond) {
		if answer, err := http.Get(url + "/ready"); err == nil {
			answer.Body.Close()
			return url
		}
		if time.Now().After(end) {
			t.Fatal("Envoy does not answer")
		}
	}
}

// cacheDir returns the folder where tools/setup.sh installs.
func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("WEIR_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "weir")
}

// seen is the part of an answer that a script of a page sees. Status 0 is a network error.
type seen struct {
	Status                 int
	Retry, Limits, Article string
}

// A page of another origin buys three times, by a script that sends its key, so that the browser
// asks by a preflight first. Behind Envoy's cors filter preflights cost nothing, and the script
// reads its refusal: status, Retry-After, RateLimit and the sentence. Before it the browser hides
// the refusal, and preflights cost a request unless they are exempt.
func TestAPageOfAnotherOriginSeesItsRefusal(t *testing.T) {
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "sold")
	}))
	defer shop.Close()
	module, err := filepath.Abs(root + "/build/weir.wasm")
	if err != nil {
		t.Fatal(err)
	}
	weir := func(exempt string) string { return fmt.Sprintf(weirFilter, module, exempt) }
	for name, c := range map[string]struct {
		filters string
		want    []int
	}{
		"behind cors":                 {corsFilter + "\n" + weir(""), []int{200, 200, 429}},
		"before cors":                 {weir("") + "\n" + corsFilter, []int{200, 0, 0}},
		"before cors, OPTIONS exempt": {weir(`"exempt": {"methods": ["OPTIONS"]}, `) + "\n" + corsFilter, []int{200, 200, 0}},
		"behind cors, OPTIONS exempt": {corsFilter + "\n" + weir(`"exempt": {"methods": ["OPTIONS"]}, `), []int{200, 200, 429}},
	} {
		t.Run(name, func(t *testing.T) {
			envoy := startShop(t, c.filters, shop.URL)
			p := start(t)
			p.do(chromedp.Navigate(shop.URL))
			for i, want := range c.want {
				got := p.buys(fmt.Sprintf("%s/buy/%d", envoy, i))
				explained := strings.Contains(got.Article, "used up") && got.Retry != ""
				if got.Status != want || want == 429 && !explained || want == 200 && got.Article != "sold" ||
					want > 0 && !strings.Contains(got.Limits, `"buyers";r=`) {
					t.Errorf("request %d: the page sees %+v, want status %d", i+1, got, want)
				}
			}
		})
	}
}

// buys fetches an address by a script of the page. The browser keeps the answer to a preflight for
// an address, so each request needs one of its own.
func (p *page) buys(url string) (got seen) {
	p.t.Helper()
	script := fmt.Sprintf(`fetch(%q, {headers: {"x-api-key": "k"}}).then(
		async a => JSON.stringify({Status: a.status, Retry: a.headers.get("retry-after") ?? "",
			Limits: a.headers.get("ratelimit") ?? "", Article: await a.text()}),
		e => JSON.stringify({Status: 0, Article: String(e)}))`, url)
	var text string
	p.do(chromedp.Evaluate(script, &text, func(e *runtime.EvaluateParams) *runtime.EvaluateParams {
		return e.WithAwaitPromise(true)
	}))
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		p.t.Fatal(err)
	}
	return got
}
