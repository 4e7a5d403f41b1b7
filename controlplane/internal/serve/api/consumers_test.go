package api_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const tiers = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: X-API-Key}, {jwt: sub}], tier: [assignment], default_tier: free}
policies: []
`

// withTiers puts a policy set with two places to find the consumer.
func withTiers(t *testing.T) *plane {
	p := newPlane(t)
	if w := p.do(call{who: "root", method: "PUT", path: "/v1/policyset", header: map[string]string{"If-Match": `"0"`}, body: tiers}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return p
}

func TestConsumers(t *testing.T) {
	p := withTiers(t)
	const path = "/v1/consumers/al%2Fi%25ce%C3%A4?source=header:x-api-key"
	p.problem(p.do(call{who: "eyes", method: "GET", path: path}), 404, "not-found")
	put := func(ifMatch, tier string) call {
		return call{who: "ed", method: "PUT", path: path, header: map[string]string{"If-Match": ifMatch}, body: `{"tier": "` + tier + `"}`}
	}
	w := p.do(put(`"0"`, "premium"))
	first := w.Header().Get("ETag")
	var got api.ConsumerAnswer
	if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != 200 || err != nil || got.Tier != "premium" ||
		got.By != "ed" || got.Source != "header:x-api-key" || len(got.Key) != 32 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if strings.Contains(p.log.String(), "al/i") || !strings.Contains(p.log.String(), `"consumer changed"`) {
		t.Errorf("log %s", p.log)
	}
	if w := p.do(call{who: "eyes", method: "GET", path: path}); w.Code != 200 || w.Header().Get("ETag") != first || first == `"0"` {
		t.Errorf("%d %s %s", w.Code, w.Header().Get("ETag"), w.Body)
	}
	p.problem(p.do(put(`"0"`, "free")), 412, "changed-meanwhile")
	// The node asks by the same hash.
	key := match.ConsumerKey(keyhash.Key{1}, policy.Source{Kind: policy.SourceHeader, Name: "x-api-key"}, "al/i%ceä")
	other := match.ConsumerKey(keyhash.Key{1}, policy.Source{Kind: policy.SourceJWT, Name: "sub"}, "al/i%ceä")
	w = p.do(call{who: "envoy", method: "POST", path: "/node/v1/consumers",
		body: string(wire.AppendQuestion(nil, []keyhash.Key{key, other}))})
	var m wire.Consumers
	if err := wire.DecodeConsumers(w.Body.Bytes(), &m); w.Code != 200 || err != nil || len(m.Items) != 2 ||
		string(m.Items[0].Tier) != "premium" || len(m.Items[1].Tier) != 0 {
		t.Errorf("%d %v %+v", w.Code, err, m)
	}
	// And hears of changes by its poll.
	w = p.do(put(first, "free"))
	second := w.Header().Get("ETag")
	if w.Code != 200 || second == first {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&consumers=" + strings.Trim(first, `"`)})
	if err := wire.DecodeConsumers(w.Body.Bytes(), &m); err != nil || w.Header().Get(api.VersionHeader) != "" ||
		!m.Complete || len(m.Items) != 1 ||
		m.Items[0].Key != key || string(m.Items[0].Tier) != "free" || etagOf(m.Revision) != second {
		t.Errorf("%d %v %+v", w.Code, err, m)
	}
	for _, quiet := range []string{"&consumers=" + strings.Trim(second, `"`), ""} {
		if w := p.do(call{who: "envoy", method: "GET",
			path: "/node/v1/snapshot?after=1&node=n&wait=10ms" + quiet}); w.Code != 204 {
			t.Errorf("nothing new%s: %d", quiet, w.Code)
		}
	}
	var list api.ConsumersAnswer
	w = p.do(call{who: "eyes", method: "GET", path: "/v1/consumers"})
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Consumers) != 1 ||
		list.Consumers[0].Key != got.Key || list.Consumers[0].Tier != "free" || list.Next != "" {
		t.Errorf("%d %v %s", w.Code, err, w.Body)
	}
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/consumers?page_token=eA"}), 400, "bad-request")
	p.problem(p.do(call{who: "ed", method: "DELETE", path: path}), 428, "precondition-required")
	if w := p.do(call{who: "ed", method: "DELETE", path: path,
		header: map[string]string{"If-Match": second}}); w.Code != 204 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	p.problem(p.do(call{who: "ed", method: "DELETE", path: path, header: map[string]string{"If-Match": "*"}}), 404,
		"not-found")
}

func etagOf(revision uint64) string {
	text, _ := json.Marshal(revision)
	return `"` + string(text) + `"`
}

func TestConsumersAreRefused(t *testing.T) {
	bare := newPlane(t)
	bare.problem(bare.do(call{who: "eyes", method: "GET", path: "/v1/consumers/alice"}), 409, "no-consumers")
	p := withTiers(t)
	const alice = "/v1/consumers/alice?source=header:x-api-key"
	match := map[string]string{"If-Match": "*"}
	for _, c := range []struct {
		name   string
		call   call
		status int
		kind   string
	}{
		{"which of two sources", call{who: "ed", method: "PUT", path: "/v1/consumers/alice", header: match, body: `{"tier":"free"}`}, 400, "bad-request"},
		{"an unknown source", call{who: "eyes", method: "GET",
			path: "/v1/consumers/alice?source=" + url.QueryEscape("cookie:x")}, 400, "bad-request"},
		{"a viewer writes", call{who: "eyes", method: "PUT", path: alice, header: match, body: `{"tier":"free"}`}, 403, "forbidden"},
		{"no precondition", call{who: "ed", method: "PUT", path: alice, body: `{"tier":"free"}`}, 428, "precondition-required"},
		{"an unknown field", call{who: "ed", method: "PUT", path: alice, header: match, body: `{"tier":"free","x":1}`}, 400, "bad-request"},
		{"two bodies", call{who: "ed", method: "PUT", path: alice, header: match, body: `{"tier":"free"}{}`}, 400, "bad-request"},
		{"a large body", call{who: "ed", method: "PUT", path: alice, header: match, body: strings.Repeat(" ", 33<<10)},
			413, "too-large"},
		{"a node is no viewer", call{who: "envoy", method: "GET", path: alice}, 403, "forbidden"},
		{"a question that is none", call{who: "envoy", method: "POST", path: "/node/v1/consumers", body: "x"}, 400,
			"bad-request"},
	} {
		t.Run(c.name, func(t *testing.T) { p.problem(p.do(c.call), c.status, c.kind) })
	}
	got := p.problem(p.do(call{who: "ed", method: "PUT", path: alice, header: match, body: `{"tier":"gold"}`}), 422, "invalid-consumer")
	if len(got.Problems) != 1 ||
		got.Problems[0] != (policy.Problem{Path: "tier", Reason: "must be one of the tiers free, premium"}) {
		t.Errorf("%+v", got)
	}
	p.store.mode.Store("away")
	p.problem(p.do(call{who: "ed", method: "PUT", path: alice, header: match, body: `{"tier":"free"}`}), 503, "store-unavailable")
	if log := p.log.String(); strings.Contains(log, "alice") || !strings.Contains(log, "/v1/consumers/:id") {
		t.Errorf("an API key must not be logged: %s", log)
	}
}
