package fromenvoy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromenvoy"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/importertest"
	"github.com/weir-proxy/weir/shared/quota"
)

func imported(t testing.TB, text string) *importer.Result {
	t.Helper()
	r, err := fromenvoy.Import([]importer.File{{Name: "envoy.yaml", Text: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	importertest.Set(t, r)
	return r
}

// always is the configuration that a filter needs to be in force.
const always = "filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}, "

// filter is the configuration of a filter chain.
func filter(fields string) string {
	return `http_filters: [{name: f, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit,
 stat_prefix: x, ` + fields + "}}]\n"
}

// routed is a filter with descriptors, and a route with the actions that fill them.
func routed(actions, descriptors string) string {
	return filter(always+"descriptors: ["+descriptors+"]") +
		"virtual_hosts: [{name: v, domains: ['*'], routes: [{name: r, match: {prefix: /}, route: {cluster: c, " +
		"rate_limits: [{actions: [" +
		actions + "]}]}}]}]\n"
}

const bucket = "token_bucket: {max_tokens: 10, tokens_per_fill: 10, fill_interval: 60s}"

func TestPolicies(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a bucket", filter(always + bucket),
			"partition: []\n    limit: {quota: 10, window: 1m, burst: 10}\n    mode: local\n"},
		{"short intervals", filter(always + "token_bucket: {max_tokens: 7, tokens_per_fill: 3, fill_interval: 0.3s}"),
			"{quota: 12, window: 1200ms, burst: 7}"},
		{"one for each interval", filter(always + "token_bucket: {max_tokens: 7, fill_interval: {seconds: 2}}"),
			"{quota: 1, window: 2s, burst: 7}"},
		{"without shares Envoy decides nothing", filter(bucket), "enforcement: off"},
		{"without the second it refuses nothing",
			filter("filter_enabled: {default_value: {numerator: 100}}, " + bucket), "enforcement: shadow"},
		{"switched off", strings.Replace(filter(always+bucket), "{name: f,", "{name: f, disabled: true,", 1),
			"enforcement: off"},
		{"a share", filter("filter_enabled: {default_value: {numerator: 50}}, filter_enforced: {default_value: " +
			"{numerator: 5000, denominator: TEN_THOUSAND}}, " + bucket),
			"enforcement: {enforce: 25}"},
		{"over a cluster", filter(always + "local_cluster_rate_limit: {}, " + bucket), "mode: leased"},
		{"a header", routed("{request_headers: {header_name: X-Tenant, descriptor_key: tenant}}",
			"{entries: [{key: tenant}], "+bucket+"}"), "partition: ['header:x-tenant']"},
		{"a value of a header", routed("{request_headers: {header_name: x-tenant, descriptor_key: tenant}}",
			"{entries: [{key: tenant, value: a b}], "+bucket+"}"),
			"- {name: x-tenant, equals: a b}\n    partition: []"},
		{"an address", routed("{remote_address: {}}",
			"{entries: [{key: remote_address, value: 192.0.2.1}], "+bucket+"}"), "client_ips: [192.0.2.1/32]"},
		{"a method", routed("{request_headers: {header_name: ':method', descriptor_key: m}}",
			"{entries: [{key: m, value: POST}], "+bucket+"}"), "methods: [POST]"},
		{"the cluster of the route",
			routed("{destination_cluster: {}}, {query_parameters: {query_parameter_name: q, descriptor_key: q}}",
				"{entries: [{key: destination_cluster, value: c}, {key: q}], "+bucket+"}"), "partition: ['query:q']"},
		{"a claim", routed("{metadata: {descriptor_key: sub, metadata_key: {key: envoy.filters.http.jwt_authn, path: "+
			"[{key: payload}, {key: sub}]}}}",
			"{entries: [{key: sub}], "+bucket+"}"), "partition: ['jwt:sub']"},
		{"a header that is not there",
			routed("{header_value_match: {descriptor_value: anonymous, expect_match: false, headers: [{name: "+
				"authorization, present_match: true}]}}",
				"{entries: [{key: header_match, value: anonymous}], "+bucket+"}"),
			"- {name: authorization, absent: true}"},
		{"a header that may be left out",
			routed("{generic_key: {descriptor_value: a}}, {request_headers: {header_name: x-user, descriptor_key: "+
				"user, skip_if_absent: true}}",
				"{entries: [{key: generic_key, value: a}], "+bucket+"}"),
			"- {name: x-user, absent: true}\n    partition: []"},
	} {
		r := imported(t, c.text)
		doc := strings.ReplaceAll(string(r.Document), `"off"`, "off")
		if !strings.Contains(doc, c.want) {
			t.Errorf("%s: want\n%s\nin\n%s\n%s", c.name, c.want, doc, importertest.Verdicts(r))
		}
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a bucket", filter(always + bucket), "exact: local_ratelimit of all routes: token_bucket: {"},
		{"for each connection", filter(always + "local_rate_limit_per_downstream_connection: true, " + bucket),
			"not possible: local_ratelimit of all routes: token_bucket:"},
		{"an action without a counterpart",
			routed("{extension: {name: cel}}", "{entries: [{key: extension}], "+bucket+"}"),
			"not possible: local_ratelimit of all routes: descriptor extension=*: no rate_limits of the files make " +
				"it for these requests; Weir has no counterpart of the action extension"},
		{"a descriptor that nothing makes", routed("{remote_address: {}}", "{entries: [{key: other}], "+bucket+"}"),
			"no rate_limits of the files make it"},
		{"a service", "http_filters: [{typed_config: {'@type': " +
			"type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit}}]",
			"not possible: RateLimit of all routes: this filter asks a rate limit service"},
		{"from a server", "http_filters: [{name: f, config_discovery: {type_urls: " +
			"[type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit]}}]",
			"not possible: config_discovery of all routes: its configuration comes from a server"},
		{"switched off for a route",
			filter(always+bucket) + "virtual_hosts: [{name: v, domains: ['*'], routes: [{name: r, match: {prefix: " +
				"/}, typed_per_filter_config: {envoy.filters.http.local_ratelimit: {disabled: true}}}]}]",
			"Weir counts requests of route r here too, Envoy does not"},
		{"no bucket", filter("status: {code: 429}"),
			"exact: local_ratelimit of all routes: it has no bucket here, and limits nothing"},
		{"an unheard-of field", filter(always + bucket + ", unheard_of: 1"),
			"not possible: local_ratelimit of all routes: unheard_of: 1"},
	} {
		if got := importertest.Verdicts(imported(t, c.text)); !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q in\n%s", c.name, c.want, got)
		}
	}
}

// Each bucket, descriptor and setting of the filters has a verdict, as has each list of actions.
func TestEachItemHasAVerdict(t *testing.T) {
	text, err := os.ReadFile("testdata/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := imported(t, string(text))
	var lines []int
	fields := []string{"token_bucket:", "filter_enabled:", "filter_enforced:", "status:", "response_headers_to_add:",
		"enable_x_", "- entries:"}
	inFilter := false
	for i, line := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.Contains(line, "@type") {
			inFilter = strings.Contains(line, "filters.http.local_ratelimit")
		}
		is := strings.HasSuffix(line, "# filter") || strings.HasSuffix(line, "# rate limit") ||
			inFilter && strings.HasPrefix(trimmed, "stat_prefix:")
		for _, f := range fields {
			// The bucket of a descriptor belongs to the descriptor's item.
			is = is || inFilter && strings.HasPrefix(trimmed, f) &&
				(f != "token_bucket:" || !strings.HasPrefix(line, strings.Repeat(" ", 34)))
		}
		if is {
			lines = append(lines, i+1)
		}
	}
	if len(lines) < 20 {
		t.Fatalf("the file has only %d items", len(lines))
	}
	importertest.Account(t, r, lines)
	golden(t, "testdata/envoy.txt", r)
}

func golden(t *testing.T, name string, r *importer.Result) {
	t.Helper()
	got := string(r.Document) + "\n" + importertest.Verdicts(r)
	if os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want, err := os.ReadFile(name); err != nil || string(want) != got {
		t.Errorf("%v: differs from %s:\n%s", err, name, got)
	}
}

// envoyBucket is Envoy's token bucket: it holds the moment from which its tokens count, and fills
// without steps.
type envoyBucket struct {
	most, rate float64 // Tokens, and tokens a second.
	empty      float64 // Seconds.
	used       bool
}

func (b *envoyBucket) take(now float64) bool {
	if !b.used {
		b.used, b.empty = true, now-b.most/b.rate
	}
	tokens := min(b.most, (now-b.empty)*b.rate)
	if tokens < 1-1e-6 {
		return false
	}
	b.empty = now - (tokens-1)/b.rate
	return true
}

func TestEnvoyDecidesAlike(t *testing.T) {
	for _, c := range []struct {
		most, fill int
		interval   float64
	}{{10, 10, 60}, {5, 1, 0.25}, {1, 1, 1}, {100, 30, 0.3}, {3, 7, 2}} {
		for seed := range uint64(10) {
			b := &envoyBucket{most: float64(c.most), rate: float64(c.fill) / c.interval}
			r := imported(t, filter(always+fmt.Sprintf("token_bucket: {max_tokens: %d, tokens_per_fill: %d, "+
				"fill_interval: %gs}", c.most, c.fill, c.interval)))
			imported := importertest.NewBucket(t, importertest.Set(t, r), "envoy-x")
			refused := 0
			for i, at := range importertest.Moments(seed, 0, 2000,
				quota.Span(6e6/b.rate)/quota.Millisecond*quota.Millisecond) {
				want := b.take(float64(at) / 1e6)
				if got, _ := imported.Take(at); got != want {
					t.Fatalf("%v, seed %d, request %d at %d: allowed %t, Envoy %t", c, seed, i, at, got, want)
				}
				if !want {
					refused++
				}
			}
			if refused < 20 || refused > 1980 {
				t.Errorf("%v, seed %d: %d of 2000 refused proves little", c, seed, refused)
			}
		}
	}
}

func FuzzImport(f *testing.F) {
	text, err := os.ReadFile("testdata/envoy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	for _, text := range []string{
		filter(always + "token_bucket: {max_tokens: -1, fill_interval: 1s}"),
		filter("token_bucket: {max_tokens: 1, fill_interval: 0.0000001s}"),
		filter(always + "token_bucket: {max_tokens: 4294967296, tokens_per_fill: 4294967296, fill_interval: " +
			"99999999999s}"),
		routed("{}", "{}"), routed("{request_headers: 1}", "{entries: 1}"), "domains: [1]", "rate_limits: [[]]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := fromenvoy.Import([]importer.File{{Name: "envoy.yaml", Text: []byte(text)}})
		if err == nil {
			importertest.Set(t, r)
		}
	})
}
