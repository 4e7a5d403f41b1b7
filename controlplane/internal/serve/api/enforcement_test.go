package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const tieredPolicies = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: X-API-Key}], tier: [assignment], default_tier: free}
policies:
  - {name: api, partition: [consumer], limits: {free: {quota: 10, window: 1m}, premium: {quota: 100, window: 1m}}}
`

func (p *plane) orders(t *testing.T, ifMatch, body string) (got api.EnforcementAnswer, etag string) {
	t.Helper()
	w := p.do(call{"ed", "PUT", "/v1/enforcement", map[string]string{"If-Match": ifMatch}, body})
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return got, w.Header().Get("ETag")
}

func TestEnforcement(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, tieredPolicies); w.Code != 200 {
		t.Fatal(w.Body)
	}
	w := p.do(call{who: "eyes", method: "GET", path: "/v1/enforcement"})
	if w.Code != 200 || w.Header().Get("ETag") != `"0"` || strings.TrimSpace(w.Body.String()) != `{"orders":[],"durable":true}` {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	body := `{"orders": [{"state": "off", "reason": "every checkout is refused"},
		{"state": "enforce", "policy": "api", "tier": "free", "percent": 25, "reason": "this one stays", "expires_at": "` + until.Format(time.RFC3339) + `"}]}`
	if w := p.do(call{"ed", "PUT", "/v1/enforcement?dry_run=true", map[string]string{"If-Match": `"0"`}, body}); w.Code != 200 || w.Header().Get("ETag") != "" {
		t.Errorf("dry run: %d %v", w.Code, w.Header())
	}
	got, etag := p.orders(t, `"0"`, body)
	if len(got.Orders) != 2 || !got.Durable || got.Orders[0].Percent != 100 || got.Orders[1].Percent != 25 ||
		got.Orders[0].By != "ed" ||
		!got.Orders[1].Expires.Equal(until) || got.Orders[0].Since.IsZero() || etag == "" || etag == `"0"` {
		t.Errorf("%s %+v", etag, got)
	}
	if !strings.Contains(p.log.String(), `off for 100 % of everything: every checkout is refused; enforce for 25 % of policy api, tier free until `) {
		t.Errorf("log %s", p.log)
	}
	// A node that asks is answered before all else; a node that does not ask is not.
	w = p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=0&node=n&wait=5s&enforcement=0"})
	var m wire.Enforcement
	if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil || len(m.Orders) != 2 ||
		m.Orders[0].State != policy.EnforcedOff || etagOf(m.Revision) != etag {
		t.Errorf("%d %v %+v", w.Code, err, m)
	}
	told := strings.Trim(etagOf(m.Revision), `"`)
	for _, quiet := range []string{"&enforcement=" + told, ""} {
		if w := p.do(call{who: "envoy", method: "GET",
			path: "/node/v1/snapshot?after=1&node=n&boot=7&wait=10ms" + quiet}); w.Code != 204 {
			t.Errorf("nothing new%s: %d", quiet, w.Code)
		}
	}
	p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&boot=7&enforcement=" + told})
	nodes := decoded[api.NodesAnswer](t, p.do(call{who: "eyes", method: "GET", path: "/v1/nodes"}))
	if nodes.Enforcement != m.Revision || len(nodes.Nodes) != 2 || nodes.Nodes[1].Enforcement != m.Revision {
		t.Errorf("%+v", nodes)
	}
	p.problem(p.do(call{"ed", "PUT", "/v1/enforcement", map[string]string{"If-Match": `"0"`}, body}), 412, "changed-meanwhile")
	// The answer to GET can be put back.
	w = p.do(call{who: "eyes", method: "GET", path: "/v1/enforcement"})
	again, _ := p.orders(t, etag, w.Body.String())
	if len(again.Orders) != 2 || !again.Orders[0].Since.Equal(got.Orders[0].Since) {
		t.Errorf("%+v", again)
	}
	if lifted, _ := p.orders(t, "*", `{"orders": []}`); len(lifted.Orders) != 0 {
		t.Errorf("%+v", lifted)
	}
}

func TestEnforcementIsRefused(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, tieredPolicies); w.Code != 200 {
		t.Fatal(w.Body)
	}
	any := map[string]string{"If-Match": "*"}
	const path, fine = "/v1/enforcement", `{"orders": []}`
	for _, c := range []struct {
		name   string
		call   call
		status int
		kind   string
	}{
		{"a viewer writes", call{"eyes", "PUT", path, any, fine}, 403, "forbidden"},
		{"a node reads", call{"envoy", "GET", path, nil, ""}, 403, "forbidden"},
		{"nobody", call{"", "GET", path, nil, ""}, 401, "unauthorized"},
		{"no precondition", call{"ed", "PUT", path, nil, fine}, 428, "precondition-required"},
		{"no reason", call{"ed", "PUT", path, any, `{"orders": [{"state": "off"}]}`}, 400, "bad-request"},
		{"another state", call{"ed", "PUT", path, any, `{"orders": [{"state": "on", "reason": "x"}]}`}, 400, "bad-request"},
		{"no percent", call{"ed", "PUT", path, any, `{"orders": [{"state": "off", "reason": "x", "percent": 0}]}`}, 400, "bad-request"},
		{"more than all", call{"ed", "PUT", path, any, `{"orders": [{"state": "off", "reason": "x", "percent": 101}]}`}, 400, "bad-request"},
		{"an unknown field", call{"ed", "PUT", path, any, `{"orders": [{"state": "off", "reason": "x", "polices": "a"}]}`}, 400, "bad-request"},
		{"too many", call{"ed", "PUT", path, any, `{"orders": [` + strings.Repeat(`{"state": "off", "reason": "x"},`, 64) + `{"state": "off", "reason": "x"}]}`}, 400, "bad-request"},
		{"too large", call{"ed", "PUT", path, any, strings.Repeat(" ", 70_000)}, 413, "too-large"},
		{"encoded", call{"ed", "PUT", path, map[string]string{"If-Match": "*", "Content-Encoding": "gzip"}, fine}, 415,
			"unsupported-media-type"},
		{"an unknown parameter", call{"eyes", "GET", path + "?x=1", nil, ""}, 400, "bad-request"},
	} {
		t.Run(c.name, func(t *testing.T) { p.problem(p.do(c.call), c.status, c.kind) })
	}
	got := p.problem(p.do(call{"ed", "PUT", path, any, `{"orders": [{"state": "off", "policy": "apj", "tier": "gold", "reason": " "},
		{"state": "off", "reason": "a\nb", "expires_at": "2020-01-01T00:00:00Z"}, {"state": "shadow", "reason": "again"}]}`}), 422, "invalid-enforcement")
	want := policy.Problems{
		{Path: "orders[0].reason", Reason: "must say why"},
		{Path: "orders[0].policy", Reason: `the policy set has no policy "apj": did you mean api?`},
		{Path: "orders[0].tier", Reason: `the policy set has no tier "gold": it has free, premium`},
		{Path: "orders[1].expires_at", Reason: "has passed"},
		{Path: "orders[1].reason", Reason: "must be one line of printable text"},
		{Path: "orders[2].state", Reason: "orders[1] is about everything already"},
	}
	if len(got.Problems) != len(want) {
		t.Fatalf("%+v", got.Problems)
	}
	for i := range want {
		if got.Problems[i] != want[i] {
			t.Errorf("%+v, want %+v", got.Problems[i], want[i])
		}
	}
}

// An order outlives the policy and the tier that it is about. It stands in the way of no other.
func TestAnOrderAboutNothingStopsNoOther(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, tieredPolicies); w.Code != 200 {
		t.Fatal(w.Body)
	}
	old := `{"state": "shadow", "policy": "api", "tier": "premium", "reason": "a trial"}`
	_, etag := p.orders(t, `"0"`, `{"orders": [`+old+`]}`)
	w := p.put(`"1"`, `{version: weir/v1, policies: [{name: other, partition: [], limit: {quota: 1, window: 1m}}]}`)
	if w.Code != 200 {
		t.Fatal(w.Body)
	}
	got, etag := p.orders(t, etag, `{"orders": [`+old+`, {"state": "off", "reason": "now"}]}`)
	if len(got.Orders) != 2 || got.Orders[0].Policy != "api" || got.Orders[1].Scope() != "everything" {
		t.Errorf("%+v", got.Orders)
	}
	// A change of it is an order of its own, and so is one about another of the lost tiers.
	for _, wrong := range []string{
		`{"state": "off", "policy": "api", "tier": "premium", "reason": "a trial"}`,
		`{"state": "shadow", "policy": "api", "tier": "free", "reason": "a trial"}`,
	} {
		body := `{"orders": [` + wrong + `]}`
		put := call{"ed", "PUT", "/v1/enforcement", map[string]string{"If-Match": "*"}, body}
		p.problem(p.do(put), 422, "invalid-enforcement")
	}
	if lifted, _ := p.orders(t, etag, `{"orders": [{"state": "off", "reason": "now"}]}`); len(lifted.Orders) != 1 {
		t.Errorf("%+v", lifted.Orders)
	}
}

// The kill switch works without the store, and says that it is not stored.
func TestEnforcementWithoutTheStore(t *testing.T) {
	p := newPlane(t)
	p.store.mode.Store("away")
	p.eventually("/readyz/store", 503)
	got, etag := p.orders(t, `"0"`, `{"orders": [{"state": "off", "reason": "now"}]}`)
	if got.Durable || len(got.Orders) != 1 {
		t.Errorf("%+v", got)
	}
	if w := p.do(call{"eyes", "GET", "/v1/enforcement", nil, ""}); !strings.Contains(w.Body.String(), `"durable":false`) {
		t.Errorf("it does not say that the orders are not stored: %s", w.Body)
	}
	if w := p.do(call{who: "envoy", method: "GET",
		path: "/node/v1/snapshot?after=0&node=n&wait=5s&enforcement=0"}); !wire.IsEnforcement(w.Body.Bytes()) {
		t.Errorf("a node is answered %d %q", w.Code, w.Body)
	}
	p.store.mode.Store("")
	deadline := time.Now().Add(10 * time.Second)
	for {
		w := p.do(call{who: "eyes", method: "GET", path: "/v1/enforcement"})
		if strings.Contains(w.Body.String(), `"durable":true`) && w.Header().Get("ETag") == etag {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, the ETag was %s", w.Body, etag)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A control plane that has never reached the store does not know the orders in force. It obeys a
// caller that replaces all orders.
func TestEnforcementBeforeTheStoreWasReached(t *testing.T) {
	p := newPlaneOn(t, "away", func(*api.Config) {})
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/enforcement"}), 503, "store-unavailable")
	put := call{"ed", "PUT", "/v1/enforcement", map[string]string{"If-Match": `"7"`}, `{"orders": [{"state": "off", "policy": "anything", "reason": "now"}]}`}
	p.problem(p.do(put), 503, "store-unavailable")
	if got, _ := p.orders(t, "*", put.body); got.Durable || len(got.Orders) != 1 {
		t.Errorf("%+v", got)
	}
}
