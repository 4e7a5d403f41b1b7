package e2e

import (
	"strings"
	"testing"
)

// withCORS puts Envoy's cors filter into a configuration, before or after Weir's, and has every
// route allow a page of another origin.
func withCORS(before bool) func(string) string {
	return func(config string) string {
		const weir, router = "                  - name: weir\n", "                  - name: envoy.filters.http.router\n"
		place := router
		if before {
			place = weir
		}
		config = strings.Replace(config, place, `                  - name: envoy.filters.http.cors
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}
`+place, 1)
		const hosts = "                      domains: [\"*\"]\n"
		return strings.Replace(config, hosts, hosts+`                      typed_per_filter_config:
                        envoy.filters.http.cors:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy
                          allow_origin_string_match: [{exact: "https://app.example.com"}]
                          allow_methods: "GET, POST"
                          expose_headers: "retry-after, ratelimit, ratelimit-policy"
`, 1)
	}
}

// Behind Envoy's cors filter a preflight costs nothing, and a page of another origin can read its
// refusal: status, body, Retry-After and limits. Before it a browser gets nothing of a refusal, and
// preflights are charged unless the policy set exempts OPTIONS.
func TestBrowsersSeeRefusalsBehindTheCORSFilter(t *testing.T) {
	t.Parallel()
	const page = "https://app.example.com"
	for _, c := range []struct {
		before  bool
		exempt  string
		passes  bool
		readsIt bool
	}{
		{true, "", true, true}, {false, "", false, false}, {false, `"exempt": {"methods": ["OPTIONS"]}, `, true, false},
	} {
		w := start(t, setup{
			alone: true, rewrite: withCORS(c.before), plugin: `{"policyset": {"version": "weir/v1", ` + c.exempt + `"policies": [` +
				`{"name": "one", "partition": ["client_ip"], "limit": {"quota": 1, "window": "1h"}, "mode": "local"}]}}`,
		})
		url := w.envoys[0].URL() + "/"
		for range 3 {
			ask(t, "OPTIONS", url, "origin", page, "access-control-request-method", "GET")
		}
		if got := ask(t, "GET", url, "origin", page); (got.status == 200) != c.passes {
			t.Errorf("%+v: after preflights: %d", c, got.status)
		}
		got := ask(t, "GET", url, "origin", page)
		reads := got.Get("access-control-allow-origin") == page &&
			strings.Contains(got.Get("access-control-expose-headers"), "retry-after")
		if got.status != 429 || reads != c.readsIt || got.Get("retry-after") == "" ||
			!strings.Contains(got.body, "used up") {
			t.Errorf("%+v: %d %v %s", c, got.status, got.Header, got.body)
		}
	}
}
