package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// heldSet has everything that the questions below need.
const heldSet = `version: weir/v1
tiers: [free, paid]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: a, partition: [consumer], limit: {quota: 10, window: 1m}}
`

// heldQuestions are all questions of people and their programs, with the way in which each is
// answered while the store is away. The answer comes from memory, with a header that says so and
// since when. Or it comes from memory and is whole, or has complete in the body. Or there is no
// answer, and the error says why.
var heldQuestions = []struct{ path, how, has string }{
	{"/v1/policyset", "held", "name: a"},
	{"/v1/policies", "memory", `"name":"a"`},
	{"/v1/policies/a", "held", `"name":"a"`},
	{"/v1/policies/a/distribution", "memory", `"complete":`},
	{"/v1/versions", "held", `"version":2`},
	{"/v1/versions/1", "held", `"version":1`},
	{"/v1/versions/2/diff", "held", `"words":`},
	{"/v1/rollout", "held", `"version":2`},
	{"/v1/audit", "held", `"action":"policyset.put"`},
	{"/v1/consumers", "held", `"tier":"paid"`},
	{"/v1/consumers/alice", "held", `"tier":"paid"`},
	{"/v1/keys/a?partition=consumer:alice", "held", `"buckets":[]`},
	{"/v1/nodes", "memory", `"complete":false`},
	{"/v1/regions", "none", ""},
	{"/v1/enforcement", "memory", `"orders":`},
	{"/v1/penalties", "memory", `"penalties":`},
	{"/v1/bans", "memory", `"bans":[]`},
	{"/v1/decisions", "memory", `"complete":`},
	{"/v1/decisions?consumer=alice", "memory", `"complete":`},
	{"/v1/top", "memory", `"complete":`},
	{"/v1/series", "memory", `"complete":`},
	{"/v1/series/comparison", "memory", `"complete":`},
	// The remaining quota is in the store alone, and half of an answer would promise too much.
	{"/v1/usage", "refused", ""},
	{"/v1/session", "none", ""},
	{"/v1/changes", "none", ""},
}

func TestWhatIsHeldIsSaidWhileTheStoreIsAway(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, heldSet); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := p.do(call{"root", "PUT", "/v1/policyset?nodes=50%25", map[string]string{"If-Match": `"1"`},
		strings.Replace(heldSet, "10", "20", 1)}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := p.do(call{"root", "PUT", "/v1/consumers/alice", map[string]string{"If-Match": "*",
		"Content-Type": "application/json"}, `{"tier": "paid"}`}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	p.do(call{"root", "GET", "/v1/audit", nil, ""}) // As the follower does each ten seconds.
	p.store.mode.Store("away")
	p.eventually("/readyz/store", 503)
	asked := map[string]bool{}
	for _, q := range heldQuestions {
		route, _, _ := strings.Cut(q.path, "?")
		asked[route] = true
		if q.how == "none" { // They ask no store.
			continue
		}
		who := call{"root", "GET", q.path, nil, ""}
		if q.how == "refused" {
			who.who, who.header = "", map[string]string{"x-api-key": "alice"}
		}
		w := p.do(who)
		held := w.Header().Get(api.HeldHeader)
		switch {
		case q.how == "refused":
			p.problem(w, 503, "store-unavailable")
		case w.Code != 200 || !strings.Contains(w.Body.String(), q.has):
			t.Errorf("%s: %d %s", q.path, w.Code, w.Body)
		case q.how == "held" && !strings.HasPrefix(held,
			"this is the copy in the memory of this control plane, as of "):
			t.Errorf("%s says %q", q.path, held)
		}
	}
	for route, item := range spec().Paths.Map() {
		if item.Get == nil || !strings.HasPrefix(route, "/v1/") {
			continue
		}
		named := strings.NewReplacer("{name}", "a", "{version}", "1", "{id}", "alice", "{policy}", "a").Replace(route)
		if route == "/v1/versions/{version}/diff" {
			named = "/v1/versions/2/diff"
		}
		if !asked[named] {
			t.Errorf("GET %s is missing in the table", route)
		}
	}
	// All changes that there ever were are held, so that a consumer without one has none.
	p.problem(p.do(call{"root", "GET", "/v1/consumers/bob", nil, ""}), 404, "not-found")
}

// A replica holds the consumers that changed last, and says that it does not know all other
// consumers.
func TestWhatIsNotHeldIsNotInvented(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, heldSet); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for batch := range 2 {
		var body strings.Builder
		for n := range 1000 {
			fmt.Fprintf(&body, `,{"id": "c%d", "tier": "paid"}`, 1000*batch+n)
		}
		if w := p.do(call{"root", "POST", "/v1/consumers", map[string]string{"If-Match": "*",
			"Content-Type": "application/json"}, `{"consumers": [` + body.String()[1:] + `]}`}); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	p.store.mode.Store("away")
	p.eventually("/readyz/store", 503)
	p.problem(p.do(call{"root", "GET", "/v1/consumers/c5", nil, ""}), 503, "store-unavailable")
	if w := p.do(call{"root", "GET", "/v1/consumers/c1500", nil, ""}); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
