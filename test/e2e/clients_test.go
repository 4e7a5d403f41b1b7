package e2e

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// beside puts another line beside each line that begins a part of the plugin's configuration.
func beside(config, line, other string) string {
	i := strings.Index(config, line)
	from := strings.LastIndexByte(config[:i], '\n') + 1
	return config[:from] + config[from:i] + other + "\n" + config[from:]
}

// A request that waits for its decision keeps its body back, also where Envoy stops a filter's
// headers alone.
func TestBodiesWaitForTheDecisionToo(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
policies:
  - {name: p, partition: [], limit: {quota: 2, window: 24h}, mode: strict}
`, rewrite: func(config string) string {
		return beside(config, "configuration:", "allow_on_headers_stop_iteration: true")
	}})
	transport := &http.Transport{DisableKeepAlives: true}
	passed := int64(0)
	for range 6 {
		r, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.envoys[0].URL()+"/a",
			io.NopCloser(bytes.NewReader(make([]byte, 100_000))))
		if err != nil {
			t.Fatal(err)
		}
		r.Trailer = http.Header{"X-Sum": {"1"}}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode == 200 {
			passed++
		}
	}
	late := w.lateCalls() // Such a call on a busy machine may have charged a token in vain.
	if passed != w.upstream.Requests() || passed > 2 || passed < 2-late {
		t.Errorf("%d passed and %d reached the upstream of a limit of 2, with %d late calls", passed,
			w.upstream.Requests(), late)
	}
}

// The configuration as a Struct is a mistake that the log explains.
func TestAStructForConfigurationIsExplained(t *testing.T) {
	t.Parallel()
	w := &world{t: t, ctx: t.Context(), upstream: &stack.Upstream{Port: 1}}
	w.serve.Port = 1
	w.rewrite = func(config string) string {
		return strings.Replace(strings.Replace(config, "protobuf.StringValue", "protobuf.Struct", 1), "value: |",
			"value:", 1)
	}
	e, err := stack.StartEnvoy(w.within(patience), w.envoyOptions("envoy-1"))
	if err == nil {
		e.Stop()
		t.Fatal("Envoy started")
	}
	if !strings.Contains(err.Error(), "google.protobuf.StringValue") {
		t.Errorf("the log does not name the required type:\n%v", err)
	}
}

// The upstream's own limits count in every line of the headers. No client reads a half of one
// limiter's answer beside a half of another limiter's answer.
func TestTheUpstreamsOwnLimits(t *testing.T) {
	t.Parallel()
	said := http.Header{}
	w := start(t, setup{policies: `
version: weir/v1
headers: {legacy: x-ratelimit}
policies:
  - {name: ours, partition: [], limit: {quota: 100, window: 24h}, mode: local}
`, handler: http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		for name, values := range said {
			out.Header()[name] = values
		}
	})})
	for _, c := range []struct {
		name            string
		upstream, wants http.Header
	}{
		{"stricter in its second line", http.Header{"Ratelimit": {`"a";r=5000`, `"b";r=3`}},
			http.Header{"Ratelimit": {`"a";r=5000`, `"b";r=3`}, "Ratelimit-Policy": nil, "X-Ratelimit-Limit": {"100"}}},
		{"looser in both", http.Header{"Ratelimit": {`"a";r=5000`, `"b";r=4000`}}, http.Header{"Ratelimit": {`"ours";r=98;t=1728`}}},
		{"another dialect", http.Header{"X-Ratelimit-Limit": {"60"}, "X-Ratelimit-Used": {"1"},
			"X-Ratelimit-Resource": {"core"}},
			http.Header{"X-Ratelimit-Limit": {"100"}, "X-Ratelimit-Remaining": {"97"}, "X-Ratelimit-Used": nil,
				"X-Ratelimit-Resource": nil}},
	} {
		said = c.upstream
		got := ask(t, "GET", w.envoys[0].URL()+"/a").Header
		for name, want := range c.wants {
			if strings.Join(got.Values(name), " | ") != strings.Join(want, " | ") {
				t.Errorf("%s: %s is %q, want %q", c.name, name, got.Values(name), want)
			}
		}
	}
}

// A body of the policy's own, with its fields filled in and the type that it names.
func TestOwnBodiesHaveFieldsAndAType(t *testing.T) {
	t.Parallel()
	w := start(t, setup{policies: `
version: weir/v1
headers: {legacy: ratelimit}
policies:
  - name: p
    partition: []
    limit: {quota: 1, window: 8s}
    mode: strict
    response:
      content_type: application/json
      body: '{"error":"rate_limited","policy":"{policy}","retry_after":{retry_after}}'
`})
	url := w.envoys[0].URL() + "/a"
	if first := ask(t, "GET", url); first.status != 200 || first.Header.Get("RateLimit-Limit") != "1" ||
		first.Header.Get("RateLimit-Remaining") != "0" || first.Header.Get("RateLimit-Reset") != "8" {
		t.Errorf("%d %v", first.status, first.Header)
	}
	a := ask(t, "GET", url)
	want := `{"error":"rate_limited","policy":"p","retry_after":` + a.Header.Get("Retry-After") + `}`
	if a.status != 429 || a.body != want || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v\n%s\nwant\n%s", a.status, a.Header, a.body, want)
	}
}
