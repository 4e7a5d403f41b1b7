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
	told := ask(t, http.MethodGet, w.envoys[0].URL()+"/strict", with("dave", 5)...).Get("RateLimit-Policy")
	if !strings.HasPrefix(told, `"strict";q=5`) {
		t.Errorf("a client with a quota of 5 receives %s", told)
	}
}
