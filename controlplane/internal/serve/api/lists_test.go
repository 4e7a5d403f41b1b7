package api_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// pagesOf follows a list of the viewer's to its end, and returns the pages.
func pagesOf[T any](p *plane, path string, next func(T) string) (pages []T) {
	p.t.Helper()
	for token := ""; ; {
		one := decoded[T](p.t, p.do(call{"eyes", "GET", path + "&page_token=" + token, nil, ""}))
		if pages = append(pages, one); next(one) == "" {
			return pages
		}
		token = next(one)
	}
}

func (p *plane) policies(query string) (names []string, pages []api.PoliciesAnswer) {
	p.t.Helper()
	pages = pagesOf(p, "/v1/policies?"+query, func(a api.PoliciesAnswer) string { return a.Next })
	for _, page := range pages {
		for _, one := range page.Policies {
			names = append(names, one.Name)
		}
	}
	return names, pages
}

const several = `version: weir/v1
tiers: [free]
identity: {consumer: [{header: X-API-Key}], tier: [assignment], default_tier: free}
policies:
  - {name: login, partition: [client_ip], limit: {quota: 5, window: 1m}, mode: strict}
  - {name: all, partition: [], limit: {quota: 5000, window: 1s}, mode: local}
  - {name: login-slow, partition: [client_ip, method], limit: [{quota: 5, window: 1s}, {quota: 9, window: 1h}], enforcement: shadow}
  - {name: part, partition: [], limit: {in_flight: 7}, enforcement: {enforce: 25}}
  - {name: none, partition: [], limit: {quota: 5, window: 1s}, algorithm: sliding_window, enforcement: 'off'}
`

func (p *plane) putSeveral() {
	p.t.Helper()
	if w := p.put(`"0"`, several); w.Code != 200 {
		p.t.Fatalf("%d %s", w.Code, w.Body)
	}
}

// The list of the policies is selected by the control plane: by a part of the name, by mode, and by
// how they are enforced.
func TestPoliciesAreFound(t *testing.T) {
	p := newPlane(t)
	if names, pages := p.policies(""); len(names) != 0 || pages[0].Version != 0 || pages[0].Found != 0 {
		t.Errorf("of an empty store: %+v", pages)
	}
	p.putSeveral()
	for query, want := range map[string]string{
		"":                         "login all login-slow part none",
		"page_size=2":              "login all login-slow part none",
		"search=LOGIN":             "login login-slow",
		"search=LOGIN&page_size=1": "login login-slow",
		"search=log%20in":          "",
		"search=%25":               "",
		"mode=local":               "all",
		"mode=leased":              "login-slow part none",
		"state=enforce":            "login all part",
		"state=shadow":             "login-slow",
		"state=off":                "none",
		"state=off&search=login":   "",
		"mode=strict&state=shadow": "",
	} {
		names, pages := p.policies(query)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("?%s lists %q, want %q", query, got, want)
		}
		for _, page := range pages {
			if page.Version != 1 || page.Found != len(strings.Fields(want)) {
				t.Errorf("?%s: version %d, found %d", query, page.Version, page.Found)
			}
		}
	}
	_, pages := p.policies("")
	got, err := json.Marshal(pages[0].Policies[2:4])
	if want := `[{"name":"login-slow","mode":"leased","algorithm":"token_bucket","limits":[{"quota":5,"window":"1s","burst":5},` +
		`{"quota":9,"window":"1h","burst":9}],"partition":["client_ip","method"],"state":"shadow","ordered":false},` +
		`{"name":"part","mode":"leased","algorithm":"token_bucket","limits":[{"in_flight":7}],"partition":[],` +
		`"state":"enforce","percent":25,"ordered":false}]`; err != nil || string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// An order changes the enforcement of a policy, and so the list that finds it. An order about a
// tier does not change the list, and neither does an order that has ended.
func TestPoliciesAreFoundByOrders(t *testing.T) {
	p := newPlane(t)
	p.putSeveral()
	order := func(orders string) {
		t.Helper()
		if w := p.edit("PUT", "/v1/enforcement", "*", `{"orders": [`+orders+`]}`); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	order(`{"state": "shadow", "policy": "login", "percent": 40, "reason": "r"}, {"state": "off", "tier": "free", "reason": "r"}`)
	names, pages := p.policies("state=shadow")
	if first := pages[0].Policies[0]; !slices.Equal(names, []string{"login", "login-slow"}) ||
		first.Percent != 40 || !first.Ordered {
		t.Errorf("%v, %+v", names, first)
	}
	order(`{"state": "enforce", "policy": "login", "reason": "r"}, {"state": "off", "reason": "r"}`)
	if names, _ := p.policies("state=enforce"); !slices.Equal(names, []string{"login"}) {
		t.Errorf("beside an order about all policies %v are enforced", names)
	}
	if names, _ := p.policies("state=off"); len(names) != 4 {
		t.Errorf("ordered off are %v", names)
	}
	soon := time.Now().Add(1500 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	order(fmt.Sprintf(`{"state": "off", "reason": "r", "expires_at": %q}`, soon))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if names, _ := p.policies("state=off"); len(names) == 1 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("an order has ended, and off are %v", names)
		}
	}
}

// A list goes on behind the policy at which it stopped, though the set has changed meanwhile.
func TestPoliciesAreListedWhileTheyChange(t *testing.T) {
	p := newPlane(t)
	p.putSeveral()
	var page api.PoliciesAnswer
	get := func(query string) string {
		t.Helper()
		w := p.do(call{"eyes", "GET", "/v1/policies?page_size=2&page_token=" + query, nil, ""})
		page = api.PoliciesAnswer{}
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return page.Next
	}
	next := get("")
	const first = "policies:\n  - {name: first, partition: [], limit: {quota: 1, window: 1s}}\n"
	p.put("*", strings.Replace(several, "policies:\n", first, 1))
	get(next)
	if page.Policies[0].Name != "login-slow" {
		t.Errorf("after one more at the beginning the next is %s", page.Policies[0].Name)
	}
	p.put("*", strings.Replace(several, "name: all", "name: some", 1))
	get(next)
	if page.Policies[0].Name != "some" {
		t.Errorf("after the last one is gone the next is %s", page.Policies[0].Name)
	}
}

// heard adds nodes in all states. Two active nodes have everything, one of them in another zone.
// One node is behind with the version. One is on the failure ladder, and one is back from it.
func heard(p *plane, orders uint64) {
	for i, n := range []struct{ id, zone, applied string }{
		{"edge-1", "a", "1"}, {"edge-2", "B", "1"}, {"edge-3", "a", "0"}, {"core-4", "a", "1"}, {"core-5", "edge", "1"},
	} {
		p.do(call{"envoy", "GET", fmt.Sprintf("/node/v1/snapshot?wait=0s&after=1&node=%s&boot=%x&zone=%s&applied=%s"+
			"&enforcement=%d", n.id, i+1, n.zone, n.applied, orders), nil, ""})
	}
	for i, worst := range map[uint64]policy.Step{4: policy.StepShare, 5: policy.StepGround} {
		p.postReport(&wire.Report{Node: fmt.Append(nil, "core-", i), Boot: i,
			Ladder: &wire.Ladder{Version: 1, Worst: worst}})
	}
}

// The list of the nodes is selected by the control plane, which counts them all.
func TestNodesAreFound(t *testing.T) {
	later := time.Duration(0)
	p := newPlaneWith(t, func(c *api.Config) { c.Now = func() time.Time { return time.Now().Add(later) } })
	p.putSeveral()
	heard(p, 0)
	nodes := func(query string) (ids []string, counts gen.NodeCounts) {
		t.Helper()
		for _, page := range pagesOf(p, "/v1/nodes?"+query, func(a api.NodesAnswer) string { return a.Next }) {
			for _, n := range page.Nodes {
				ids = append(ids, n.ID)
			}
			counts = page.Counts
		}
		return ids, counts
	}
	for query, want := range map[string]string{
		"":                               "core-4 core-5 edge-1 edge-2 edge-3",
		"page_size=2":                    "core-4 core-5 edge-1 edge-2 edge-3",
		"search=EDGE":                    "core-5 edge-1 edge-2 edge-3",
		"search=edge-&page_size=1":       "edge-1 edge-2 edge-3",
		"search=" + url.QueryEscape("*"): "",
		"zone=B":                         "edge-2",
		"zone=B&search=core":             "",
		"behind=true":                    "edge-3",
		"behind=false":                   "core-4 core-5 edge-1 edge-2 edge-3",
		"fallen=true":                    "core-4",
		"fallen=true&behind=true":        "",
		"away=true":                      "",
	} {
		ids, counts := nodes(query)
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("?%s lists %q, want %q", query, got, want)
		}
		if want := (gen.NodeCounts{Active: 5, Behind: 1, Fallen: 1, Found: len(ids)}); counts != want {
			t.Errorf("?%s counts %+v, want %+v", query, counts, want)
		}
	}
	if w := p.edit("PUT", "/v1/enforcement", "*", `{"orders": [{"state": "off", "reason": "r"}]}`); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if ids, counts := nodes("behind=true"); len(ids) != 5 || counts.LackOrders != 5 || counts.Behind != 5 {
		t.Errorf("before the orders have arrived %v are behind: %+v", ids, counts)
	}
	later = 2 * time.Minute
	if ids, counts := nodes("away=true"); len(ids) != 5 || counts != (gen.NodeCounts{Away: 5, Found: 5}) {
		t.Errorf("two minutes later %v are away: %+v", ids, counts)
	}
	if ids, _ := nodes("behind=true"); len(ids) != 0 {
		t.Errorf("of those that are away %v are behind", ids)
	}
}

// A list refuses a wrong parameter, and names the possible values.
func TestListsSayWhatTheyCanBeAskedFor(t *testing.T) {
	p := newPlane(t)
	p.putSeveral()
	long := strings.Repeat("x", 257)
	for path, want := range map[string]string{
		"/v1/policies?search=" + long:       "search must have at most 256 characters",
		"/v1/policies?mode=central":         "mode must be local, leased, strict or optimistic",
		"/v1/policies?state=on":             "state must be enforce, shadow or off",
		"/v1/policies?name=api":             `there is no query parameter "name"; there are mode, page_size, page_token, search, state`,
		"/v1/policies?page_token=" + "bm90": "page_token must be a next_page_token from an earlier answer",
		"/v1/nodes?search=" + long:          "search must have at most 256 characters",
		"/v1/nodes?zone=" + long:            "zone must be the name of a zone, of at most 64 characters",
		"/v1/nodes?behind=1":                "behind must be true or false",
		"/v1/nodes?away=no&fallen=yes":      "fallen must be true or false; away must be true or false",
		"/v1/decisions?key=12":              "key must be the hash of a partition key, 32 digits",
		"/v1/decisions?policy=all&partition=client_ip:1.2.3.4&key=" + strings.Repeat("0", 32): "" +
			"key and partition both name a partition key: give key or partition",
	} {
		w := p.do(call{"eyes", "GET", path, nil, ""})
		p.problem(w, 400, "bad-request")
		var said struct{ Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || said.Detail != want {
			t.Errorf("%s: %q, want %q", path[:min(len(path), 60)], said.Detail, want)
		}
	}
	p.problem(p.do(call{"envoy", "GET", "/v1/policies", nil, ""}), 403, "forbidden")
}
