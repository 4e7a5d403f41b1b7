package api_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// One act of an operator is one entry of the audit.
func TestOneActIsOneEntry(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, heldSet); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	entries := func() []string {
		t.Helper()
		page := decoded[api.AuditAnswer](t, p.do(call{"eyes", "GET", "/v1/audit", nil, ""}))
		var list []string
		for _, e := range page.Entries {
			list = append(list, fmt.Sprintf("%s %s by %s", e.Action, e.Resource, e.By))
		}
		return list
	}
	const key = "/v1/keys/a%s?partition=consumer:alice"
	header := map[string]string{"Content-Type": "application/json", "If-Match": "*"}
	for _, c := range []struct{ method, path, body string }{
		{"POST", fmt.Sprintf(key, "/reset"), `{"reason": "x"}`},
		{"POST", fmt.Sprintf(key, "/grant"), `{"reason": "x", "tokens": 1}`},
		{"POST", fmt.Sprintf(key, "/ban"), `{"reason": "x"}`},
		{"DELETE", fmt.Sprintf(key, "/ban"), ""},
		{"PUT", "/v1/consumers/alice", `{"tier": "paid"}`},
		{"DELETE", "/v1/consumers/alice", ""},
		{"PUT", "/v1/enforcement", `{"orders": [{"state": "off", "reason": "x"}]}`},
		{"PUT", "/v1/policies/a", `{"name": "a", "partition": ["consumer"], "limit": {"quota": 9, "window": "1m"}}`},
		{"POST", "/v1/versions/1/rollback", ""},
	} {
		before := len(entries())
		send := header
		if c.body == "" {
			send = map[string]string{"If-Match": "*"}
		}
		if c.path == "/v1/enforcement" {
			send = map[string]string{"Content-Type": "application/json",
				"If-Match": p.do(call{who: "eyes", method: "GET", path: c.path}).Header().Get("ETag")}
		}
		if w := p.do(call{"root", c.method, c.path, send, c.body}); w.Code/100 != 2 {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
			continue
		}
		if after := entries(); len(after) != before+1 {
			t.Errorf("%s %s: %d entries more: %v", c.method, c.path, len(after)-before, after[:len(after)-before])
		}
	}
}
