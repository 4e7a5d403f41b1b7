package e2e

import (
	"strings"
	"testing"
)

// house are answers for the whole set, and a policy with one of its own.
const house = `
version: weir/v1
identity: {client_ip: {trusted_hops: 1}}
banned: {client_ips: [203.0.113.0/24]}
responses:
  quota:
    status: 420
    content_type: application/json
    body: '{"code":"slow","of":{"limit":{limit}},"see":"{{plan}}"}'
    headers: {X-Code: slow}
  absent: {status: 401, body: no key, headers: {www-authenticate: ApiKey}}
  ban: {status: 451, body: 'banned, {retry_after}', headers: {x-code: banned}}
policies:
  - {name: keys, match: {paths: [/key]}, partition: ["header:x-api-key"], if_absent: deny, limit: {quota: 1, window: 1h}, mode: strict}
  - {name: lacks, match: {paths: [/lacks]}, partition: ["header:x-lacks"], if_absent: deny, limit: {quota: 1, window: 1h}}
  - {name: own, match: {paths: [/own]}, partition: [], limit: {quota: 1, window: 1h}, mode: strict, response: {body: own}}
`

// The set's responses answer a refusal according to its reason, here and through Envoy's own
// ratelimit filter, which chooses the status itself. A policy's own response has priority.
func TestResponsesOfTheSet(t *testing.T) {
	t.Parallel()
	w := startWithCalls(t, 1, 1, house)
	for i, e := range w.envoys {
		key := []string{"x-api-key", e.Name}
		for _, path := range []string{"/key", "/own"} {
			w.awaitLimited(e, path, key...)
		}
		for _, c := range []struct {
			path, from          string
			key                 []string
			status              int
			body, header, value string
		}{
			{"/key", "192.0.2.1", key, 420, `{"code":"slow","of":{"limit":1},"see":"{plan}"}`, "x-code", "slow"},
			{"/lacks", "192.0.2.1", key, 401, "no key", "www-authenticate", "ApiKey"},
			{"/key", "192.0.2.1", nil, 401, "no key", "www-authenticate", "ApiKey"},
			{"/key", "203.0.113.9", nil, 451, "banned, never", "x-code", "banned"},
			{"/own", "192.0.2.1", nil, 420, "own", "content-type", "text/plain; charset=utf-8"},
		} {
			if i > 0 {
				if c.path == "/key" && c.key == nil {
					continue // It asks about no request without a key, and says no address of these.
				}
				c.status = 429
			}
			a := ask(t, "GET", e.URL()+c.path, append([]string{"x-forwarded-for", c.from}, c.key...)...)
			if a.status != c.status || a.body != c.body || a.Get(c.header) != c.value {
				t.Errorf("%s at %s: %d %s %v, want %d %s", c.path, e.Name, a.status, a.body, a.Header, c.status, c.body)
			}
		}
		a := ask(t, "POST", e.URL()+"/key", append([]string{"content-type", "application/grpc"}, key...)...)
		if message := a.Get("grpc-message"); a.Get("grpc-status") != "8" || a.Get("x-code") != "slow" ||
			!strings.HasPrefix(message, "Policy keys allows 1 per 1h, and that is used up. Try again in ") {
			t.Errorf("gRPC at %s: %d %s %v", e.Name, a.status, a.body, a.Header)
		}
	}
}
