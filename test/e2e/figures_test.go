package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// A claim that Envoy has verified is the caller's limit, on each Envoy or over both: another
// token of the same caller brings other figures to the same bucket, a figure above max is cut, and
// a token without one has the default.
func TestAClaimIsTheCallersLimit(t *testing.T) {
	t.Parallel()
	tokens := newIssuer(t)
	w := start(t, setup{envoys: 2, rewrite: insertFilter(tokens.filter()), policies: `
version: weir/v1
identity: {consumer: [{jwt: sub}]}
policies:
  - {name: local, match: {paths: [/local]}, partition: [consumer], limit: {quota: {jwt: plan.rpd, max: 6, default: 1}, window: 24h}, mode: local}
  - {name: strict, match: {paths: [/strict]}, partition: [consumer], limit: {quota: {jwt: plan.rpd, max: 6, default: 1}, window: 24h}, mode: strict}
  - {name: leased, match: {paths: [/leased]}, partition: [consumer], limit: {quota: {jwt: plan.rpd, max: 6, default: 1}, window: 24h}, mode: leased}
  - {name: fixed, match: {paths: [/fixed]}, partition: [consumer], algorithm: fixed_window, limit: {quota: {header: x-rpd, trusted: true, max: 6, default: 1}, window: 24h}, mode: strict}
`})
	with := func(sub string, plan any) []string {
		claims := map[string]any{"sub": sub}
		if plan != nil {
			claims["plan"] = map[string]any{"rpd": plan}
		}
		header := []string{"Authorization", tokens.token(t, claims)}
		if n, is := plan.(string); is {
			header = append(header, "x-rpd", n)
		}
		return header
	}
	for _, path := range []string{"/local", "/strict", "/leased", "/fixed"} {
		second := 1
		if path == "/local" {
			second = 0 // Each Envoy has a bucket of its own.
		}
		for _, c := range []struct {
			envoy  int
			header []string
			want   string
		}{
			{0, with("alice", nil), "200 429 429 429"},
			{second, with("alice", "3"), "200 200 429 429"},
			{0, with("alice", nil), "429 429 429 429"},
			{second, with("alice", "1000000"), "200 200 200 429"},
			{0, with("alice", "6"), "429 429 429 429"},
			{0, with("bob", "2"), "200 200 429 429"},
			{0, with("eve", "-1"), "200 429 429 429"},
		} {
			if got := statuses(t, 4, w.envoys[c.envoy].URL()+path, c.header...); got != c.want {
				t.Errorf("%s: %s, want %s", path, got, c.want)
			}
		}
	}
	// A number of a token is one too, and clients see their own limit.
	if got := statuses(t, 4, w.envoys[0].URL()+"/strict", with("carol", 2)...); got != "200 200 429 429" {
		t.Errorf("a number: %s", got)
	}
	got := ask(t, http.MethodGet, w.envoys[0].URL()+"/strict", with("dave", 5)...).Get("RateLimit-Policy")
	if !strings.HasPrefix(got, `"strict";q=5`) {
		t.Errorf("a client with a quota of 5 receives %s", got)
	}
}

// A claim that Envoy has verified, or a value that another filter has left in its metadata, is the
// number of tokens that a request reserves. The largest of several values counts, at most max;
// without a value missing counts. The response settles it.
func TestAClaimAndMetadataAreReserved(t *testing.T) {
	t.Parallel()
	tokens := newIssuer(t)
	const toMetadata = `- name: envoy.filters.http.header_to_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
    request_rules:
      - {header: x-declares, on_header_present: {metadata_namespace: ai, key: max_tokens, type: NUMBER}}
      - {header: x-declares-new, on_header_present: {metadata_namespace: ai, key: max_completion_tokens, type: NUMBER}}
`
	insert := insertFilter(tokens.filter() + toMetadata)
	rewrite := func(config string) string { return logCosts(insert(config)) }
	w := start(t, setup{envoys: 2, rewrite: rewrite, policies: `
version: weir/v1
policies:
  - {name: claims, match: {paths: [/claims]}, partition: [], algorithm: sliding_window, limit: {quota: 100, window: 24h}, mode: strict, cost: {reserve: {jwt: plan.max_tokens, max: 60, missing: 5}, commit: {status: {rest: 1}}}}
  - {name: metadata, match: {paths: [/metadata]}, partition: [], algorithm: sliding_window, limit: {quota: 100, window: 24h}, mode: strict, cost: {reserve: {metadata: [ai/max_tokens, ai/max_completion_tokens], max: 60, missing: 5}, commit: {status: {rest: 1}}}}
  - {name: headers, match: {paths: [/headers]}, partition: [], algorithm: sliding_window, limit: {quota: 100, window: 24h}, mode: strict, cost: {reserve: {header: [x-declares, x-declares-new], max: 60, missing: 5}, commit: {status: {rest: 1}}}}
`})
	claims := func(n any) []string {
		plan := map[string]any{"sub": "alice"}
		if n != nil {
			plan["plan"] = map[string]any{"max_tokens": n}
		}
		return []string{"Authorization", tokens.token(t, plan)}
	}
	declares := func(n string) []string {
		return append(claims(nil), "x-declares", n)
	}
	for _, c := range []struct {
		path, want string
		header     []string
	}{
		{"/claims", "reserved=40 actual=1", claims(40)},
		{"/claims", "reserved=39 actual=1", claims("39")},
		{"/claims", "reserved=60 actual=1", claims(61)},
		{"/claims", "reserved=5 actual=1", claims(nil)},
		{"/metadata", "reserved=40 actual=1", declares("40")},
		{"/metadata", "reserved=5 actual=1", declares("0")},
		{"/metadata", "reserved=5 actual=1", claims(nil)},
		{"/metadata", "reserved=38 actual=1", append(declares("3"), "x-declares-new", "38")},
		{"/metadata", "reserved=37 actual=1", append(declares("37"), "x-declares-new", "3")},
		{"/headers", "reserved=36 actual=1", append(declares("3"), "x-declares-new", "36")},
		{"/headers", "reserved=35 actual=1", append(declares("3"), "x-declares", "35", "x-declares", "-1")},
	} {
		askInTime(t, http.MethodGet, w.envoys[1].URL()+c.path, c.header...)
		w.awaitOutput(w.envoys[1], "cost="+c.want)
	}
	left := askInTime(t, http.MethodGet, w.envoys[0].URL()+"/claims", claims(60)...).Get("RateLimit")
	if !strings.Contains(left, "r=36") { // Of 100 four have cost one each, and 60 are reserved.
		t.Errorf("the other Envoy says %s", left)
	}
}
