package native

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
)

// A mapping is a part of a policy set.
type mapping map[string]any

// drawSet draws a policy set of local policies, and adds the policy probe: it alone applies to
// requests with the header x-probe. No window ends and no token comes back while a test runs.
func drawSet(t *testing.T, r *rand.Rand, probe string) []byte {
	t.Helper()
	set := mapping{
		"version": "weir/v1", "tiers": []string{"free", "gold"},
		"identity": mapping{
			"consumer":     []any{mapping{"header": "x-key"}, mapping{"cookie": "session"}, mapping{"query": "key"}},
			"tier":         []any{mapping{"header": "x-tier", "trusted": true}},
			"default_tier": "free", "if_several": draw(r, "deny", "first", "joined"),
		},
		"match": mapping{
			"path_parameters": draw(r, "keep", "cut"), "path_case": draw(r, "keep", "fold"),
			"trailing_slash": draw(r, "keep", "cut"),
		},
		"headers": mapping{
			"standard":          draw(r, "draft-11", "off"),
			"legacy":            draw(r, "off", "x-ratelimit", "envoy", "github", "discord", "x-rate-limit"),
			"envoy_ratelimited": draw(r, "on", "off"),
		},
	}
	if chance(r, 3) {
		set["exempt"] = mapping{"methods": []string{"OPTIONS"}, "consumers": []string{"k3"}}
	}
	if chance(r, 3) {
		set["responses"] = mapping{
			"absent": mapping{"status": 401, "headers": mapping{"www-authenticate": "ApiKey"}},
			"quota":  mapping{"body": "Try again in {retry_after} seconds."},
		}
	}
	policies := []mapping{}
	for i := range 1 + r.IntN(4) {
		policies = append(policies, drawPolicy(r, fmt.Sprint("p.", i)))
	}
	set["policies"] = append(policies, mapping{
		"name": probe, "match": mapping{"headers": []any{mapping{"name": "x-probe", "present": true}}},
		"partition": []string{},
		"limit":     mapping{"quota": 1000, "window": "366d"}, "mode": "local",
	})
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func drawPolicy(r *rand.Rand, name string) mapping {
	limit := mapping{"quota": 3 + r.IntN(4), "window": draw(r, "300d", "366d")}
	p := mapping{
		"name": name, "mode": "local", "limit": limit, "if_absent": draw(r, "skip", "deny", "shared"),
		"partition": draw(r, []string{}, []string{"client_ip"}, []string{"consumer"},
			[]string{"header:x-key", "method"}, []string{"tier", "path"}, []string{"header:x-part"}),
	}
	p["algorithm"] = draw(r, "token_bucket", "token_bucket", "sliding_window", "sliding_window_counter", "fixed_window",
		"sliding_log")
	if p["algorithm"] == "token_bucket" && chance(r, 2) {
		limit["burst"] = 3 + r.IntN(6)
	}
	if chance(r, 4) {
		delete(p, "limit")
		p["limits"] = mapping{"free": limit, "gold": draw[any](r, "unlimited", mapping{"quota": 9, "window": "366d"})}
	}
	match := mapping{}
	if chance(r, 2) {
		match["paths"] = draw(r, []string{"/a/**"}, []string{"/a/{id}", "/b"}, []string{"/**"}, []string{"/A/1"})
	}
	if chance(r, 4) {
		match["methods"] = draw(r, []string{"GET"}, []string{"POST", "PUT"})
	}
	if chance(r, 4) {
		match["hosts"] = []string{draw(r, "api.example.com", "*.example.com")}
	}
	headers := []any{mapping{"name": "x-probe", "absent": true}}
	if chance(r, 4) {
		headers = append(headers, draw(r, mapping{"name": "x-part", "present": true},
			mapping{"name": "x-key", "prefix": "k1"}))
	}
	match["headers"], p["match"] = headers, match
	if chance(r, 4) {
		p["cost"] = draw[any](r, 2, 0, mapping{"header": "x-cost", "max": 3, "invalid": draw[any](r, 1, "deny")})
	}
	if chance(r, 5) {
		p["enforcement"] = draw(r, "shadow", "off")
	}
	if chance(r, 4) {
		p["response"] = mapping{"status": draw(r, 403, 429, 503), "body": "Refused by {policy}."}
	}
	return p
}

// drawRequest draws a request of the corpus.
func drawRequest(t *testing.T, r *rand.Rand, url string) *http.Request {
	t.Helper()
	path := draw(r, "/a/1", "/a/2", "/A/1", "/a/1/", "/a/1;v=2", "/b", "/b?key=k2", "/a//1", "/c%20d", "/")
	request, err := http.NewRequest(draw(r, "GET", "GET", "POST", "PUT", "HEAD", "OPTIONS"), url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = draw(r, "api.example.com", "API.example.com:8080", "example.com", "other")
	if chance(r, 2) {
		request.Header.Set("x-key", draw(r, "k1", "k2", "k3", "k10", ""))
	}
	if chance(r, 8) {
		request.Header.Add("x-key", "k4")
	}
	if chance(r, 4) {
		request.Header.Set("cookie", "a=b; session="+draw(r, "s1", "s2"))
	}
	if chance(r, 3) {
		request.Header.Set("x-tier", draw(r, "free", "gold", "none"))
	}
	if chance(r, 3) {
		request.Header.Set("x-part", draw(r, "é", "part", "a b"))
	}
	if chance(r, 3) {
		request.Header.Set("x-cost", draw(r, "2", "0", "9", "-1", "x"))
	}
	if chance(r, 6) {
		request.Header.Set("content-type", "application/grpc")
	}
	if chance(r, 6) {
		request.Header.Set("ratelimit", `"forged";r=9;t=9`)
	}
	return request
}

func draw[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// chance is true once in n times.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }
