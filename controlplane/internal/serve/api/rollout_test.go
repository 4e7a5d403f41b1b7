package api_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/wire"
)

// Of four nodes half are among the first half; which ones is a property of their names.
const (
	firstHalf  = "node-a node-c"
	secondHalf = "node-b node-d"
)

func changedSet(quota int) string {
	return fmt.Sprintf("version: weir/v1\npolicies:\n  - {name: a, partition: [], limit: {quota: %d, window: 1m}}\n",
		quota)
}

func decoded[T any](t testing.TB, w *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != 200 {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return v
}

// rollout does something to the rollout.
func (p *plane) rollout(method, path, ifMatch, body string) *httptest.ResponseRecorder {
	p.t.Helper()
	return p.do(call{"ed", method, path, map[string]string{"If-Match": ifMatch}, body})
}

// gets polls as each node, with more in the query, and says which versions they get.
func (p *plane) gets(after string, more ...string) string {
	p.t.Helper()
	var got []string
	for _, n := range strings.Fields(firstHalf + " " + secondHalf) {
		query := "node=" + n + "&boot=1&after=" + after + "&applied=" + after + strings.Join(more, "")
		w := p.do(call{"envoy", "GET", "/node/v1/snapshot?" + query, nil, ""})
		got = append(got, n+":"+w.Header().Get("Weir-Version"))
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

func TestRollout(t *testing.T) {
	p := newPlane(t)
	p.problem(p.do(call{"ed", "PUT", "/v1/policyset?nodes=25%25", map[string]string{"If-Match": `"0"`}, set}), 409, "nothing-to-keep")
	p.put(`"0"`, set)
	p.problem(p.do(call{"eyes", "GET", "/v1/rollout", nil, ""}), 404, "no-rollout")
	p.problem(p.rollout("DELETE", "/v1/rollout", "*", ""), 404, "no-rollout")
	p.problem(p.rollout("PUT", "/v1/rollout", "*", `{"nodes":"50%"}`), 404, "no-rollout")
	if got := p.gets("0"); got != "node-a:1 node-b:1 node-c:1 node-d:1" {
		t.Fatalf("before it: %s", got)
	}

	dry := decoded[api.PutAnswer](t, p.do(call{"ed", "PUT", "/v1/policyset?nodes=50%&dry_run=true", map[string]string{"If-Match": `"1"`}, changedSet(20)}))
	if dry.Rollout == nil || dry.Rollout.Nodes != "50%" || dry.Rollout.Chosen != 2 || dry.Rollout.Seen != 4 ||
		!strings.Contains(dry.Rollout.Bound, "larger of both limits") {
		t.Errorf("dry run: %+v", dry.Rollout)
	}
	w := p.do(call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, changedSet(20)})
	if put := decoded[api.PutAnswer](t, w); put.Version != 2 || put.Summary != "a: limit 10 per 1m → 20 per 1m" ||
		w.Header().Get("ETag") != "" {
		t.Errorf("begun: %+v %v", put, w.Header())
	}
	if got := p.gets("1"); got != "node-a:2 node-b: node-c:2 node-d:" {
		t.Errorf("with half: %s", got)
	}
	p.holds(1, set)
	w = p.do(call{"eyes", "GET", "/v1/rollout", nil, ""})
	r, tag := decoded[api.RolloutAnswer](t, w), w.Header().Get("ETag")
	if r.Version != 2 || r.Current != 1 || r.Nodes != "50%" || r.By != "ed" || r.Seen != 4 || r.Chosen != 2 || r.Applied != 0 || len(r.Apart) != 0 || tag != `"1"` {
		t.Errorf("status: %+v %s", r, tag)
	}
	wanted := map[string]uint64{}
	for _, n := range decoded[api.NodesAnswer](t, p.do(call{"eyes", "GET", "/v1/nodes", nil, ""})).Nodes {
		wanted[n.ID] = n.Wanted
	}
	if fmt.Sprint(wanted) != "map[node-a:2 node-b:1 node-c:2 node-d:1]" {
		t.Errorf("nodes ought to have %v", wanted)
	}

	// Until it ends nothing else changes.
	for _, c := range []call{
		{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": `"1"`}, changedSet(30)},
		{"ed", "PUT", "/v1/policyset?nodes=50%25", map[string]string{"If-Match": "*"}, changedSet(30)},
		{"ed", "PATCH", "/v1/policies/a", map[string]string{"If-Match": "*"}, `{"mode":"strict"}`},
		{"ed", "PUT", "/v1/policies/a", map[string]string{"If-Match": "*"}, `{"partition":[],"limit":{"quota":1,"window":"1s"}}`},
		{"ed", "DELETE", "/v1/policies/a", map[string]string{"If-Match": "*"}, ""},
		{"ed", "POST", "/v1/versions/1/rollback", map[string]string{"If-Match": "*"}, ""},
	} {
		if got := p.problem(p.do(c), 409, "rollout-under-way"); !strings.HasPrefix(got.Detail,
			"version 2 is being rolled out to 50 % of the nodes since ") {
			t.Error(got.Detail)
		}
	}
	p.problem(p.rollout("PUT", "/v1/rollout", `"7"`, `{"nodes":"75%"}`), 412, "changed-meanwhile")
	p.problem(p.rollout("DELETE", "/v1/rollout", `"7"`, ""), 412, "changed-meanwhile")

	step := decoded[api.RolloutStepAnswer](t, p.rollout("PUT", "/v1/rollout?dry_run=true", tag, `{"nodes":"100%"}`))
	if step.Rollout != "promoted" || step.Chosen != 4 || step.Diff.Words[0] != "~ a: limit 10 per 1m → 20 per 1m" {
		t.Errorf("dry run of the promotion: %+v", step)
	}
	w = p.rollout("PUT", "/v1/rollout", tag, `{"nodes":"100%"}`)
	if step = decoded[api.RolloutStepAnswer](t, w); step.Rollout != "promoted" || w.Header().Get("ETag") != "" {
		t.Errorf("promotion: %+v", step)
	}
	p.holds(2, changedSet(20))
	if got := p.gets("1"); got != "node-a:2 node-b:2 node-c:2 node-d:2" {
		t.Errorf("promoted: %s", got)
	}
	if v := decoded[api.VersionAnswer](t,
		p.do(call{"eyes", "GET", "/v1/versions/2", nil, ""})); v.Rollout != "promoted" || v.Text != changedSet(20) {
		t.Errorf("the history has %+v", v)
	}
}

func TestRolloutIsTakenBack(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, set)
	w := p.do(call{"ed", "PATCH", "/v1/policies/a?nodes=1%25", map[string]string{"If-Match": `"1"`}, `{"limit":{"quota":5}}`})
	if got := decoded[api.PutAnswer](t, w); got.Rollout == nil || got.Rollout.Seen != 0 {
		t.Errorf("begun: %+v", got)
	}
	w = p.rollout("PUT", "/v1/rollout", `"1"`, `{"nodes":"50%"}`)
	if step := decoded[api.RolloutStepAnswer](t, w); step.Rollout != "under way" || w.Header().Get("ETag") != `"2"` {
		t.Errorf("grown: %+v", step)
	}
	p.gets("0")
	step := decoded[api.RolloutStepAnswer](t, p.rollout("DELETE", "/v1/rollout", `"2"`, ""))
	if step.Rollout != "taken back" || step.Nodes != "0%" || step.Diff.Words[0] != "~ a: limit 5 per 1m → 10 per 1m" {
		t.Errorf("taken back: %+v", step)
	}
	// A node goes back once the store was asked anew.
	if got := p.gets("2", "&wait=5s"); got != "node-a:1 node-b:1 node-c:1 node-d:1" {
		t.Errorf("afterwards: %s", got)
	}
	p.holds(1, set)
	versions := decoded[api.VersionsAnswer](t, p.do(call{"eyes", "GET", "/v1/versions", nil, ""})).Versions
	if len(versions) != 2 || versions[0].Number != 2 || versions[0].Rollout != "taken back" ||
		versions[1].Rollout != "" {
		t.Errorf("the history has %+v", versions)
	}
	// Its number is not given again, and another begins anew.
	if put := decoded[api.PutAnswer](t, p.put(`"1"`, changedSet(7))); put.Version != 3 {
		t.Errorf("the next version is %d", put.Version)
	}
	var said []string
	for _, e := range decoded[api.AuditAnswer](t, p.do(call{"root", "GET", "/v1/audit", nil, ""})).Entries {
		before, _ := json.Marshal(e.Before)
		after, _ := json.Marshal(e.After)
		said = append(said, fmt.Sprintf("%s %s %s %s→%s", e.By, e.Action, e.Resource, before, after))
	}
	slices.Reverse(said)
	want := []string{
		`ed policy.patch policies/a {"version":1}→{"nodes":"1%","summary":"a: limit 10 per 1m → 5 per 1m","version":2}`,
		`ed rollout.put rollout {"nodes":"1%","version":2}→{"nodes":"50%","version":2}`,
		`ed rollout.delete rollout {"nodes":"50%","version":2}→{"nodes":"0%","version":2}`,
	}
	if !slices.Equal(said[1:4], want) {
		t.Errorf("the audit has\n%s", strings.Join(said, "\n"))
	}
}

// A policy that is partitioned otherwise has buckets of its own in each version, and the answer
// says so.
func TestRolloutApart(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, set)
	w := p.do(call{"ed", "PATCH", "/v1/policies/a?nodes=50%25", map[string]string{"If-Match": `"1"`}, `{"partition":["client_ip"]}`})
	if got := decoded[api.PutAnswer](t, w); !slices.Equal(got.Rollout.Apart, []string{"a"}) {
		t.Errorf("%+v", got.Rollout)
	}
}

func TestRolloutRefusesInItsWords(t *testing.T) {
	p := newPlane(t)
	match := map[string]string{"If-Match": "*"}
	for _, c := range []struct {
		call
		status int
		kind   string
	}{
		{call{"ed", "PUT", "/v1/policyset?nodes=0", match, set}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/policyset?nodes=101%25", match, set}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/policyset?nodes=many", match, set}, 400, "bad-request"},
		{call{"eyes", "GET", "/v1/rollout?x=1", nil, ""}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/rollout", match, `{"nodes":"0%"}`}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/rollout", match, `{"nodes":"50%","until":"tomorrow"}`}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/rollout", nil, `{"nodes":"50%"}`}, 428, "precondition-required"},
		{call{"ed", "PUT", "/v1/rollout", match, strings.Repeat("x", 4097)}, 413, "too-large"},
		{call{"ed", "PUT", "/v1/rollout", map[string]string{"If-Match": "*", "Content-Encoding": "gzip"}, `{"nodes":"50%"}`}, 415, "unsupported-media-type"},
		{call{"ed", "DELETE", "/v1/rollout", nil, ""}, 428, "precondition-required"},
		{call{"ed", "DELETE", "/v1/rollout", map[string]string{"If-Match": "x"}, ""}, 400, "bad-request"},
		{call{"ed", "DELETE", "/v1/rollout", map[string]string{"If-Match": "*", "Content-Encoding": "gzip"}, ""}, 415,
			"unsupported-media-type"},
	} {
		p.problem(p.do(c.call), c.status, c.kind)
	}
	for body, says := range map[string]string{
		`{"nodes":"200%"}`: `nodes: must be a share of the nodes from 1% to 100%, not "200%"`,
		`{"nodes":"half"}`: `nodes: must be a share of the nodes from 1% to 100%, not "half"`,
		`{"nodes":50}`:     `the body must be JSON like {"nodes":"50%"}`,
	} {
		got := p.problem(p.do(call{"ed", "PUT", "/v1/rollout", match, body}), 400, "bad-request")
		if got.Detail != says {
			t.Errorf("%s: %q, want %q", body, got.Detail, says)
		}
	}
	p.store.mode.Store("away")
	for _, c := range []call{
		{"eyes", "GET", "/v1/rollout", nil, ""},
		{"ed", "PUT", "/v1/rollout", match, `{"nodes":"50%"}`},
		{"ed", "DELETE", "/v1/rollout", match, ""},
	} {
		p.problem(p.do(c), 503, "store-unavailable")
	}
}

// The decisions of the rollout's nodes are shown beside the decisions of all other nodes, exactly,
// by policy. Counts of other versions, of policies that a version lacks, and of older nodes are not
// in them.
func TestARolloutIsComparedWithTheOthers(t *testing.T) {
	var past *series.Service
	var later time.Duration
	p := newPlaneWith(t, func(c *api.Config) {
		past, c.Now = c.Series, func() time.Time { return time.Now().Add(later) }
	})
	p.put(`"0"`, changedSet(10))
	measure := func(version uint64, name string, decided, refused int64) {
		t.Helper()
		m := wire.Measures{Node: []byte("n"), Items: []wire.Measure{{Policy: []byte(name), Version: version,
			Decided: decided, Refused: refused, Unsure: 1, Waited: 2, Held: 30}}}
		w := p.postReport(&m)
		if w.Code != 204 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	measure(1, "a", 50, 50) // Before it began.
	w := p.do(call{"ed", "PUT", "/v1/policyset?nodes=50%25&abort_if=refused+%3E+2x", map[string]string{"If-Match": `"1"`},
		changedSet(20)})
	if got := decoded[api.PutAnswer](t, w).Rollout; got.AbortIf != "refused > 2x" {
		t.Errorf("begun: %+v", got)
	}
	status := func() api.RolloutAnswer {
		t.Helper()
		if err := past.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		return decoded[api.RolloutAnswer](t, p.do(call{"eyes", "GET", "/v1/rollout", nil, ""}))
	}
	measure(1, "a", 50, 50) // An Envoy counted that before it began, at least in part.
	measure(1, "*", 50, 50)
	if got := status(); got.Verdict != "too few requests" || got.Its.Requests+got.Others.Requests != 0 {
		t.Errorf("before anything was decided: %+v", got)
	}
	later = 10 * time.Second
	for range 2 {
		measure(1, "a", 100, 10)
		measure(2, "a", 200, 60)
		measure(1, "*", 110, 10)
		measure(2, "*", 220, 60)
	}
	measure(3, "a", 1000, 1000)
	measure(0, "a", 1000, 1000)
	measure(1, "b", 1000, 1000)
	got := status()
	side := func(requests, refused int64) api.RolloutSide {
		return api.RolloutSide{Requests: requests, Refused: refused, Errors: 2, Waited: 4, WaitedMs: 60}
	}
	if len(got.Policies) != 1 || got.Policies[0].Its != side(400, 120) || got.Policies[0].Others != side(200, 20) ||
		got.Its != side(440, 120) || got.Others != side(220, 20) || got.AbortIf != "refused > 2x" ||
		got.Verdict != "kept" || got.Because != "" || got.PoliciesLeftOut != 0 {
		t.Errorf("%+v", got)
	}
	measure(2, "a", 400, 400)
	if got := status(); got.Verdict != "broken" || got.Because !=
		"refused > 2x: by policy a on its nodes 65 % (520 of 800) were refused, on the others 10 % (20 of 200)" {
		t.Errorf("%s: %q", got.Verdict, got.Because)
	}
}

// A rule is refused with a sentence wherever one is given, and can be changed and removed.
func TestTheRuleOfARollout(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, changedSet(10))
	match := map[string]string{"If-Match": "*"}
	for _, c := range []call{
		{"ed", "PUT", "/v1/policyset?nodes=50%25&abort_if=refused+%3E+2", match, changedSet(20)},
		{"ed", "PATCH", "/v1/policies/a?nodes=50%25&abort_if=refused+%3E+2", match, `{"limit":{"quota":1,"window":"1s"}}`},
	} {
		if got := p.problem(p.do(c), 400, "bad-request"); got.Detail !=
			`abort_if: "2" lacks its unit: 2x is twice the share of the other nodes, 2% is a share` {
			t.Error(got.Detail)
		}
	}
	w := p.do(call{"ed", "PUT", "/v1/policyset?abort_if=refused+%3E+2x", match, changedSet(20)})
	got := p.problem(w, 400, "bad-request")
	if !strings.Contains(got.Detail, "abort_if needs nodes, like nodes=25%") {
		t.Error(got.Detail)
	}
	p.holds(1, changedSet(10))
	p.do(call{"ed", "PUT", "/v1/policyset?nodes=50%25", match, changedSet(20)})
	p.problem(p.rollout("PUT", "/v1/rollout", "*", `{"nodes":"50%","abort_if":"refuse"}`), 400, "bad-request")
	got = p.problem(p.rollout("PUT", "/v1/rollout", "*", `{"nodes":"100%","abort_if":"errors > 1%"}`), 400, "bad-request")
	if !strings.Contains(got.Detail, "abort_if needs nodes below 100%") {
		t.Error(got.Detail)
	}
	for _, c := range [][2]string{{`{"nodes":"60%","abort_if":"errors > 1%"}`, "errors > 1%"},
		{`{"nodes":"70%"}`, "errors > 1%"}, {`{"nodes":"70%","abort_if":"off"}`, ""}} {
		p.rollout("PUT", "/v1/rollout", "*", c[0])
		got := decoded[api.RolloutAnswer](t, p.do(call{"eyes", "GET", "/v1/rollout", nil, ""}))
		if got.AbortIf != c[1] || (got.Verdict == "") != (c[1] == "") {
			t.Errorf("after %s: %+v", c[0], got)
		}
	}
}

// A policy that only the version has which is rolled out refuses requests already: it can be
// switched off, and an explanation says that there are two versions.
func TestPoliciesOfADraftCanBeSwitchedOff(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, changedSet(10))
	if a := p.explain(`{"url": "/x"}`); a.Version != 1 || a.RolledOut != 0 {
		t.Errorf("before a rollout: %+v", a)
	}
	more := changedSet(10) + "  - {name: added, partition: [], limit: {quota: 1, window: 1m}}\n"
	if w := p.do(call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, more}); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if a := p.explain(`{"url": "/x"}`); a.Version != 1 || a.RolledOut != 2 {
		t.Errorf("while one is under way: %+v", a)
	}
	for name, want := range map[string]int{"added": 200, "a": 200, "addedd": 422} {
		order := fmt.Sprintf(`{"orders": [{"policy": %q, "state": "off", "reason": "x"}]}`, name)
		header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
		if w := p.do(call{"ed", "PUT", "/v1/enforcement", header, order}); w.Code != want {
			t.Errorf("an order about %s: %d %s", name, w.Code, w.Body)
		}
	}
}
