package cli

import (
	"encoding/json"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

func TestSentences(t *testing.T) {
	for _, c := range []struct{ entry, want string }{
		{`{"action": "policyset.put", "before": {"version": 1}, "after": {"nodes": "25%", "summary": "2 changed", "version": 2}}`,
			"version 2 for 25% of the nodes: 2 changed"},
		{`{"action": "version.rollback", "reason": "back to version 1", "after": {"summary": "back to version 1: 2 changed", "version": 3}}`,
			"version 3: back to version 1: 2 changed"},
		{`{"action": "policyset.restore", "reason": "the store had lost it", "before": {"version": 2}, "after": {"summary": "2 changed", "version": 3}}`,
			"version 3: 2 changed: the store had lost it"},
		{`{"action": "consumers.restore", "resource": "consumers", "reason": "the store had lost them", "after": {"consumers": 2, "bans": 1}}`,
			"2 consumers given back: the store had lost them"},
		{`{"action": "rollout.put", "before": {"nodes": "25%", "version": 2}, "after": {"nodes": "50%", "version": 2}}`,
			"version 2 for 50% of the nodes, before for 25%"},
		{`{"action": "rollout.delete", "before": {"nodes": "25%", "version": 2}}`,
			"version 2 taken back, which 25% of the nodes had"},
		{`{"action": "enforcement.put", "before": [{"state": "off", "percent": 100, "reason": "a"}],
			"after": [{"state": "shadow", "percent": 20, "policy": "api", "tier": "free", "reason": "b", "expires_at": "2030-01-01T00:00:00Z"}]}`,
			"enforcement shadow for policy api, tier free, 20 % of the keys until 2030-01-01T00:00:00Z: b; " +
				"enforcement no longer off for everything"},
		{`{"action": "enforcement.put", "before": [{"state": "off", "percent": 100, "reason": "a"}],
			"after": [{"state": "enforce", "percent": 100, "reason": "a"}]}`,
			"enforcement enforce for everything until it is taken back: a"},
		{`{"action": "enforcement.restore", "reason": "the store had lost it", "after": [{"state": "off", "percent": 100, "reason": "a"}]}`,
			"enforcement off for everything until it is taken back: a: the store had lost it"},
		{`{"action": "enforcement.restore", "reason": "the store had lost it", "before": [{"state": "off", "percent": 100, "reason": "a"}],
			"after": [{"state": "off", "percent": 100, "reason": "a"}]}`,
			"enforcement: all orders as before: the store had lost it"},
		{`{"action": "consumer.put", "resource": "consumers/01",
			"before": {"tier": "free", "banned": {"reason": "x"}, "overrides": [{"policy": "a", "limits": [{"quota": 5, "window": "1m"}]}]},
			"after": {"bypass": {"reason": "probe"}, "overrides": [{"policy": "b", "reason": "launch"}]}}`,
			"consumer 01: no longer banned; not limited until it is taken back: probe; no longer tier free; " +
				"limit under b unlimited until it is taken back: launch; the policy's limit under a"},
		{`{"action": "consumer.put", "resource": "consumers/01", "before": {"tier": "free"}, "after": {"tier": "free"}}`,
			"consumer 01: put again as it was"},
		{`{"action": "consumers.put", "resource": "consumers", "after": {"consumers": 1000}}`, "1000 consumers put"},
		{`{"action": "key.reset", "resource": "keys/login/0d", "reason": "fixed"}`, "key 0d of login: reset: fixed"},
		{`{"action": "key.grant", "resource": "keys/login/0d", "after": {"tokens": 1}}`, "key 0d of login: given 1 token"},
		{`{"action": "key.unban", "resource": "keys/login/0d"}`, "key 0d of login: no longer banned"},
		// A value that was too large to be kept, a value of a newer control plane, and text that a
		// terminal must not see.
		{`{"action": "enforcement.put", "resource": "enforcement", "before": "5000 bytes"}`,
			`enforcement.put of enforcement: "5000 bytes" → -`},
		{`{"action": "penalty.pardon", "resource": "penalties/01", "reason": "why"}`, "penalty.pardon of penalties/01: - → -: why"},
		{`{"action": "key.reset", "resource": "keys/login/0d", "reason": "\u001b[31m\r\nx"}`, "key 0d of login: reset: ?[31m??x"},
	} {
		var e gen.AuditEntry
		if err := json.Unmarshal([]byte(c.entry), &e); err != nil {
			t.Fatal(err)
		}
		if got := describeChange(&e); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.entry, got, c.want)
		}
	}
}
