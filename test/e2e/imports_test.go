package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/tools/stack"
)

// asked are requests that begin at once, all alike.
type asked struct {
	n      int
	method string
	path   string
	header []string
}

// imported is a verdict of an import that is tried on both products: the same requests are sent to
// each, and each must answer as often with each status.
type imported struct {
	name string
	// zones and server are the contents of the blocks http and server of nginx, where @ is a part
	// of the names of zones and PASS leads to the service. filter and routes are the contents of
	// Envoy's filter local_ratelimit and of its virtual host.
	zones, server  string
	filter, routes string
	asks           []asked
	// want are the answers, request by request of asks, as the source's manual says.
	want []map[int]int
}

// asks returns requests with a header that names the tenant; an empty tenant has no header.
func asks(n int, method, path, tenant string) asked {
	a := asked{n: n, method: method, path: path}
	if tenant != "" {
		a.header = []string{"x-tenant", tenant}
	}
	return a
}

const (
	perAddress = "limit_req_zone $binary_remote_addr zone=z@:1m rate=1r/m;"
	perMinute  = "zone=z@:1m rate=1r/m;"
)

// ofNginx are the verdicts of docs/start/migration.md on nginx that can be seen in answers. Tokens
// come a minute apart, so that a machine that is busy changes none of them.
var ofNginx = []imported{
	{name: "nodelay", zones: perAddress, server: "location / { limit_req zone=z@ burst=20 nodelay; PASS }",
		asks: []asked{asks(25, "GET", "/", "")}, want: []map[int]int{{200: 21, 503: 4}}},
	{name: "a status", zones: perAddress, server: "limit_req_status 429; location / { limit_req zone=z@; PASS }",
		asks: []asked{asks(3, "GET", "/", "")}, want: []map[int]int{{200: 1, 429: 2}}},
	{name: "a header, and none", zones: "limit_req_zone $http_x_tenant " + perMinute,
		server: "location / { limit_req zone=z@ burst=1 nodelay; PASS }",
		asks:   []asked{asks(4, "GET", "/", "a"), asks(4, "GET", "/", "b"), asks(4, "GET", "/", "")},
		want:   []map[int]int{{200: 2, 503: 2}, {200: 2, 503: 2}, {200: 4}}},
	{name: "an allow list", zones: "geo $near@ { default 1; 127.0.0.0/8 0; } " +
		"map $near@ $k@ { 0 \"\"; 1 $binary_remote_addr; } limit_req_zone $k@ " + perMinute,
		server: "location / { limit_req zone=z@; PASS }",
		asks:   []asked{asks(5, "GET", "/", "")}, want: []map[int]int{{200: 5}}},
	{name: "a map of the method", zones: "map $request_method $k@ { POST $binary_remote_addr; default \"\"; } " +
		"limit_req_zone $k@ " + perMinute, server: "location / { limit_req zone=z@; PASS }",
		asks: []asked{asks(3, "POST", "/", ""), asks(3, "GET", "/", "")},
		want: []map[int]int{{200: 1, 503: 2}, {200: 3}}},
	{name: "a dry run", zones: perAddress, server: "limit_req_dry_run on; location / { limit_req zone=z@; PASS }",
		asks: []asked{asks(4, "GET", "/", "")}, want: []map[int]int{{200: 4}}},
	{name: "locations", zones: perAddress + " limit_req_zone $binary_remote_addr zone=y@:1m rate=1r/m;",
		server: "location /a/ { limit_req zone=z@ burst=1 nodelay; PASS } " +
			"location = /b { limit_req zone=y@; PASS } location / { PASS }",
		asks: []asked{asks(3, "GET", "/a/x", ""), asks(3, "GET", "/b", ""), asks(3, "GET", "/b/c", ""),
			asks(3, "GET", "/other", "")},
		want: []map[int]int{{200: 2, 503: 1}, {200: 1, 503: 2}, {200: 3}, {200: 3}}},
	{name: "an expression of two paths", zones: perAddress,
		server: "location ~ ^/a/(b|c)$ { limit_req zone=z@ burst=1 nodelay; PASS } location / { PASS }",
		asks:   []asked{asks(1, "GET", "/a/b", ""), asks(2, "GET", "/a/c", ""), asks(3, "GET", "/a/d", "")},
		want:   []map[int]int{{200: 1}, {200: 1, 503: 1}, {200: 3}}},
	{name: "connections", zones: "limit_conn_zone $binary_remote_addr zone=z@:1m;",
		server: "location / { limit_conn z@ 2; PASS }",
		asks:   []asked{asks(5, "GET", "/held", "")}, want: []map[int]int{{200: 2, 503: 3}}},
}

const (
	always = "filter_enabled: {default_value: {numerator: 100}}\n" +
		"filter_enforced: {default_value: {numerator: 100}}\n"
	tenantActions = "rate_limits:\n  - actions:\n" +
		"      - request_headers: {header_name: x-tenant, descriptor_key: tenant}\n"
)

// bucket returns a bucket of Envoy that gets a token a minute.
func bucket(size int) string {
	return fmt.Sprintf("token_bucket: {max_tokens: %d, tokens_per_fill: 1, fill_interval: 60s}\n", size)
}

// ofEnvoy are those on local_ratelimit.
var ofEnvoy = []imported{
	{name: "a bucket and a status", filter: bucket(5) + "status: {code: 503}\n" + always,
		asks: []asked{asks(8, "GET", "/", "")}, want: []map[int]int{{200: 5, 503: 3}}},
	{name: "not enforced", filter: bucket(1) + "filter_enabled: {default_value: {numerator: 100}}\n",
		asks: []asked{asks(4, "GET", "/", "")}, want: []map[int]int{{200: 4}}},
	{name: "descriptors", routes: tenantActions, filter: bucket(9) + always +
		"descriptors:\n  - entries: [{key: tenant, value: a}]\n    " + bucket(2) +
		"  - entries: [{key: tenant}]\n    " + bucket(3),
		asks: []asked{asks(3, "GET", "/", "a"), asks(4, "GET", "/", "b"), asks(4, "GET", "/", "c"),
			asks(4, "GET", "/", "")},
		want: []map[int]int{{200: 2, 429: 1}, {200: 3, 429: 1}, {200: 3, 429: 1}, {200: 1, 429: 3}}},
}

// Limits that are imported decide as in nginx: both get the same requests.
func TestImportedLimitsDecideAsInNginx(t *testing.T) {
	t.Parallel()
	w, service := serving(t)
	url, config := startNginx(w, ofNginx)
	w.plugin = `{"policyset": ` + importAs(t, "nginx", config) + `}`
	w.startEnvoy("imported")
	for i, c := range ofNginx {
		c.bothDecideAlike(t, service, fmt.Sprintf("host-%d.example", i), url, w.envoys[0].URL())
	}
	if t.Failed() {
		t.Logf("imported as %s", w.plugin)
	}
}

// Limits that are imported decide as in Envoy's own filter.
func TestImportedLimitsDecideAsInLocalRateLimit(t *testing.T) {
	t.Parallel()
	for _, c := range ofEnvoy {
		w, service := serving(t)
		url, config := startLocalRateLimit(w, c)
		w.plugin = `{"policyset": ` + importAs(t, "envoy", config) + `}`
		w.startEnvoy("imported")
		c.bothDecideAlike(t, service, "", url, w.envoys[0].URL())
		if t.Failed() {
			t.Fatalf("imported as %s", w.plugin)
		}
	}
}

// serving returns a world with a service alone.
func serving(t *testing.T) (*world, *gate) {
	t.Helper()
	service := &gate{}
	upstream, err := stack.StartUpstream(service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	w := &world{t: t, ctx: t.Context(), setup: setup{alone: true}, upstream: upstream}
	if w.serve.Port, err = stack.FreePort(); err != nil { // Nothing listens there.
		t.Fatal(err)
	}
	return w, service
}

func (c imported) bothDecideAlike(t *testing.T, service *gate, host, source, weir string) {
	t.Helper()
	for i, a := range c.asks {
		there, here := service.count(t, source, host, a, c.want[i]), service.count(t, weir, host, a, c.want[i])
		if want := fmt.Sprint(c.want[i]); fmt.Sprint(there) != want || fmt.Sprint(here) != want {
			t.Errorf("%s, %+v: the source answers %v, Weir %v, want %s", c.name, a, there, here, want)
		}
	}
}

// gate is a service that holds requests for /held until the required number of requests has been
// refused.
type gate struct {
	mu   sync.Mutex
	open chan struct{}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if r.URL.Path == "/held" {
		select {
		case <-open:
		case <-r.Context().Done():
		}
	}
	_, _ = io.WriteString(w, "served")
}

// count sends requests at once and counts the answers by status.
func (g *gate) count(t *testing.T, url, host string, a asked, want map[int]int) map[int]int {
	t.Helper()
	open := make(chan struct{})
	g.mu.Lock()
	g.open = open
	g.mu.Unlock()
	refused := a.n - want[http.StatusOK]
	statuses := make(chan int, a.n)
	for range a.n {
		go func() {
			statuses <- sent(t.Context(), url+a.path, host, a)
		}()
	}
	got := map[int]int{}
	for range a.n {
		if got[http.StatusServiceUnavailable]+got[http.StatusTooManyRequests] == refused && open != nil {
			close(open)
			open = nil
		}
		select {
		case s := <-statuses:
			got[s]++
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: %v, and no more answers", url, got)
		}
	}
	return got
}

// sent returns the status that a request is answered with, 0 if it is not answered.
func sent(ctx context.Context, url, host string, a asked) int {
	r, err := http.NewRequestWithContext(ctx, a.method, url, nil)
	if err != nil {
		return 0
	}
	r.Host = host
	for i := 0; i+1 < len(a.header); i += 2 {
		r.Header.Set(a.header[i], a.header[i+1])
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// importAs returns the result of weir import for a configuration, in JSON.
func importAs(t *testing.T, from string, config []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(controlPlanePath, "import", from, path)
	var verdicts bytes.Buffer
	command.Stderr = &verdicts
	document, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &verdicts)
	}
	t.Logf("%s", &verdicts)
	var set any
	if err := yaml.Unmarshal(document, &set); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// startNginx starts nginx before the service, and returns where it listens and its configuration.
func startNginx(w *world, all []imported) (url string, config []byte) {
	w.t.Helper()
	port, err := stack.FreePort()
	if err != nil {
		w.t.Fatal(err)
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx = "/usr/sbin/nginx" // Debian has it where not every PATH leads.
	}
	dir := w.t.TempDir()
	text := "daemon off;\npid " + dir + "/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += kind + "_temp_path " + filepath.Join(dir, kind) + ";\n"
	}
	pass := fmt.Sprintf("proxy_pass http://127.0.0.1:%d;", w.upstream.Port)
	for i, c := range all {
		text += strings.NewReplacer("@", fmt.Sprint(i), "PASS", pass).Replace(fmt.Sprintf(
			"%s\nserver {\nlisten 127.0.0.1:%d;\nserver_name host-@.example;\n%s\n}\n", c.zones, port, c.server))
	}
	text += "}\n"
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	process, err := stack.Start(stack.Command{Name: "nginx", Path: nginx, Args: []string{"-p", dir, "-c", path}})
	if err != nil {
		w.t.Fatal(err, ": tools/setup.sh nginx installs it")
	}
	w.t.Cleanup(func() { process.Stop(5 * time.Second) })
	w.show(process)
	url = fmt.Sprintf("http://127.0.0.1:%d", port)
	w.await("nginx", func(ctx context.Context) error {
		// A request would be counted.
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return url, []byte(text)
}

// startLocalRateLimit starts an Envoy whose own filter stands in the place of Weir's.
func startLocalRateLimit(w *world, c imported) (url string, config []byte) {
	w.t.Helper()
	o := w.envoyOptions("native")
	const kind = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
	filter := indented("- name: envoy.filters.http.local_ratelimit\n  typed_config:\n    \"@type\": "+kind+
		"\n    stat_prefix: native\n", 18)
	o.Rewrite = func(config string) string {
		config = stack.FilterText.ReplaceAllString(config, filter+indented(c.filter, 22)+"$1")
		host := "                      domains: [\"*\"]\n"
		return strings.Replace(config, host, host+indented(c.routes, 22), 1)
	}
	text, err := o.Configuration()
	if err != nil {
		w.t.Fatal(err)
	}
	envoy, err := stack.StartEnvoy(w.ctx, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(envoy.Stop)
	w.show(envoy.Process)
	return envoy.URL(), []byte(text)
}

func indented(text string, by int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.Repeat(" ", by) + line)
	}
	return out.String()
}
