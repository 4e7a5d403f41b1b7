package api_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// rolledOutSet has a limit that both versions share, a limit that differs, and a policy that only
// one version has.
func rolledOutSet(quota int, only string) string {
	return fmt.Sprintf(`
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: same, partition: [consumer], limit: {quota: 9, window: 1h}}
  - {name: differs, partition: [consumer], limit: {quota: %d, window: 1h}}
  - {name: %s, partition: [consumer], limit: {quota: 7, window: 1h}}
`, quota, only)
}

// rolledOut returns a plane with a rollout of version 2, whose limits differ from version 1.
func rolledOut(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t)
	if w := p.put(`"0"`, rolledOutSet(10, "old")); w.Code != 200 {
		t.Fatal(w.Body)
	}
	draft := call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, rolledOutSet(5, "new")}
	if w := p.do(draft); w.Code != 200 {
		t.Fatal(w.Body)
	}
	return p
}

// takes has a node of a version take tokens of a bucket by the limit of a policy.
func (p *plane) takes(t *testing.T, version uint64, bucket string, limit uint32, tokens int64) {
	t.Helper()
	key, err := keyhash.Parse(bucket)
	if err != nil {
		t.Fatal(err)
	}
	request := wire.LeaseRequest{Node: "n", Boot: 1, Seq: 1, Version: version,
		Items: []wire.LeaseItem{{Bucket: key, Limit: limit, Waiting: tokens, Cost: 1}}}
	w := p.do(call{who: "envoy", method: "POST", path: "/node/v1/leases",
		body: string(wire.AppendLeaseRequest(nil, request))})
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	get := call{who: "eyes", method: "GET", path: "/v1/keys/differs?partition=alice"}
	deadline := time.Now().Add(10 * time.Second)
	for leased := int64(1); leased > 0; { // They count as used once no node can still hold them.
		if leased = 0; time.Now().After(deadline) {
			t.Fatal("tokens of requests stay leased")
		}
		for _, b := range p.key(t, get).Buckets {
			leased += b.Leased
		}
	}
}

// bucketsText are the buckets of a key, each with its version, limit and level.
func bucketsText(k api.KeyAnswer) string {
	var all []string
	for _, b := range k.Buckets {
		all = append(all, fmt.Sprintf("v%d: %d of %s", b.Version, b.Level, b.Limit))
	}
	return strings.Join(all, ", ")
}

// During a rollout each view is true for both versions, for the callers at their nodes.
func TestViewsKnowBothVersions(t *testing.T) {
	p := rolledOut(t)
	key := func(policy string) api.KeyAnswer {
		return p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/" + policy + "?partition=alice"})
	}
	differs := key("differs").Buckets[0].Bucket
	p.takes(t, 2, differs, 1, 3)
	for policy, want := range map[string]string{
		"same": "v0: 9 of 9 per 1h", "differs": "v1: 7 of 10 per 1h, v2: 2 of 5 per 1h",
		"old": "v1: 7 of 7 per 1h", "new": "v2: 7 of 7 per 1h",
	} {
		if got := bucketsText(key(policy)); got != want {
			t.Errorf("keys get %s: %s, want %s", policy, got, want)
		}
	}
	p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/keys/neither?partition=alice"}), 404, "not-found")

	usage := decoded[api.UsageAnswer](t, p.do(call{method: "GET", path: "/v1/usage",
		header: map[string]string{"X-Api-Key": "alice"}}))
	var left []string
	for _, l := range usage.Limits {
		left = append(left, fmt.Sprintf("%s v%d: %d of %d", l.Policy, l.Version, l.Remaining, l.Quota))
	}
	slices.Sort(left)
	if got := strings.Join(left, ", "); got != "differs v1: 7 of 10, differs v2: 2 of 5, new v2: 7 of 7, "+
		"old v1: 7 of 7, same v0: 9 of 9" {
		t.Errorf("usage: %s", got)
	}

	listed := decoded[api.PoliciesAnswer](t, p.do(call{who: "eyes", method: "GET", path: "/v1/policies"}))
	var names []string
	for _, one := range listed.Policies {
		names = append(names, fmt.Sprintf("%s v%d %d", one.Name, one.Version, one.Limits[0].Quota))
	}
	if got := strings.Join(names, ", "); listed.Found != 5 ||
		got != "same v0 9, differs v1 10, old v1 7, differs v2 5, new v2 7" {
		t.Errorf("policies: %s (%d)", got, listed.Found)
	}
	for n := 1; n <= 5; n++ { // Each page goes on where the last one ended.
		token, got := "", 0
		for pages := 0; pages < 9; pages++ {
			page := decoded[api.PoliciesAnswer](t, p.do(call{who: "eyes", method: "GET",
				path: fmt.Sprintf("/v1/policies?page_size=%d&page_token=%s", n, url.QueryEscape(token))}))
			if got += len(page.Policies); page.Next == "" {
				break
			}
			token = page.Next
		}
		if got != 5 {
			t.Errorf("in pages of %d there are %d policies", n, got)
		}
	}
	policy := func(query string) string {
		return p.do(call{who: "eyes", method: "GET", path: "/v1/policies/" + query}).Body.String()
	}
	if one, two := policy("differs"), policy("differs?version=2"); !strings.Contains(one, "10") ||
		!strings.Contains(two, "5") {
		t.Errorf("one policy: %s; %s", one, two)
	}
	drafted := p.problem(p.do(call{who: "eyes", method: "GET", path: "/v1/policies/new"}), 404, "not-found")
	if !strings.Contains(drafted.Detail, "version=2") {
		t.Error(drafted.Detail)
	}
	for version, want := range map[string]string{"": "differs 7 of 10", "1": "differs 7 of 10", "2": "differs 2 of 5"} {
		body := `{"url": "/x", "headers": [{"name": "x-api-key", "value": "alice"}]`
		if version != "" {
			body += `, "version": ` + version
		}
		explained := decoded[api.ExplainedAnswer](t, p.do(call{"eyes", "POST", "/v1/explain",
			map[string]string{"Content-Type": "application/json"}, body + "}"}))
		one := explained.Policies[1]
		got := fmt.Sprintf("%s %d of %d", one.Name, one.Limits[0].Level, one.Limits[0].Burst)
		if got != want || explained.RolledOut != 2 {
			t.Errorf("explained by version %q: %s, want %s", version, got, want)
		}
	}
	header := p.do(call{who: "eyes", method: "GET", path: "/v1/policyset"}).Header().Get(api.RolloutHeader)
	if header != "version 2 is rolled out to 50 % of the nodes, version 1 to the other nodes" {
		t.Errorf("%s: %q", api.RolloutHeader, header)
	}
}

// A refusal is shown with the level of the bucket by the version of its node.
func TestWhyGoesByTheVersionOfTheNode(t *testing.T) {
	p := rolledOut(t)
	get := call{who: "eyes", method: "GET", path: "/v1/keys/differs?partition=alice"}
	differs := p.key(t, get).Buckets[0].Bucket
	p.takes(t, 2, differs, 1, 3)
	bucket, err := keyhash.Parse(differs)
	if err != nil {
		t.Fatal(err)
	}
	for version := range uint64(2) {
		m := wire.Decisions{Node: []byte("n"), Version: version + 1, Refusals: []wire.Refusal{{
			CallerCount: wire.CallerCount{Policy: 1, Bucket: bucket, Count: 1}, Limit: 1, Reason: uint8(version),
			Cost: 1}}}
		if w := p.postReport(&m); w.Code != 204 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	page := decoded[api.DecisionsAnswer](t, p.do(call{who: "eyes", method: "GET",
		path: "/v1/decisions?policy=differs&partition=consumer:alice"}))
	var got []string
	for _, d := range page.Decisions {
		if d.Now == nil {
			t.Fatalf("no level: %+v", d)
		}
		got = append(got, fmt.Sprintf("v%d %s: %d of %d", d.Version, d.Limit, d.Now.Tokens, d.Now.Of))
	}
	slices.Sort(got)
	if text := strings.Join(got, ", "); text != "v1 10 per 1h: 7 of 10, v2 5 per 1h: 2 of 5" {
		t.Error(text)
	}
}

// otherHeader are two versions of a set that read the consumer of one policy in other headers, so
// each knows a caller by another hash.
func otherHeader(header string) string {
	return "version: weir/v1\nidentity: {consumer: [{header: " + header + "}]}\n" +
		"policies:\n  - {name: a, partition: [consumer], limit: {quota: 9, window: 1h}}\n"
}

// Whichever version's hash of a key is banned: lifting the ban lifts it, once, as one entry.
func TestUnbanningLiftsWhatIsBannedOfEitherVersion(t *testing.T) {
	const path = "/v1/keys/a/ban?partition=alice"
	header := map[string]string{"Content-Type": "application/json"}
	ban := call{"ed", "POST", path, header, `{"reason": "x"}`}
	for name, acts := range map[string][]string{
		"of the current version": {"x-a", "ban", "draft x-b"},
		"of the draft":           {"x-b", "ban", "x-a", "draft x-b"},
		"of both":                {"x-a", "draft x-b", "ban"},
	} {
		p := newPlane(t)
		number := 0
		for _, act := range acts {
			if act == "ban" {
				p.key(t, ban)
				continue
			}
			from, isDraft := strings.CutPrefix(act, "draft ")
			put := call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": fmt.Sprintf(`"%d"`, number)},
				otherHeader(from)}
			if isDraft {
				put.path += "?nodes=50"
			}
			if w := p.do(put); w.Code != 200 {
				t.Fatal(name, w.Body)
			}
			number++
		}
		entries := func() int {
			return len(decoded[api.AuditAnswer](t, p.do(call{who: "eyes", method: "GET", path: "/v1/audit"})).Entries)
		}
		get := call{who: "eyes", method: "GET", path: "/v1/keys/a?partition=alice"}
		// On a busy machine the store may take a change, and its entry, only after the answer.
		awaitStore := func() {
			for end := time.Now().Add(10 * time.Second); !p.key(t, get).Durable && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
		}
		if p.key(t, get).Ban == nil {
			t.Errorf("%s: no ban is shown", name)
		}
		awaitStore()
		before := entries()
		lift := call{who: "ed", method: "DELETE", path: path}
		if w := p.do(lift); w.Code != 200 {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		awaitStore()
		if banned, made := p.key(t, get).Ban != nil, entries()-before; banned || made != 1 {
			t.Errorf("%s: banned %t, %d entries", name, banned, made)
		}
		p.problem(p.do(lift), 404, "not-found")
	}
}

// Where there is room for a ban by one version's hash of a key and not for the other's, the key is
// banned by neither.
func TestABanOfBothVersionsIsMadeWholeOrNotAtAll(t *testing.T) {
	p := newPlane(t)
	d := enforcement.Document{Revision: uint64(time.Now().UnixMilli()),
		Bans: enforcement.Bans{Stamp: enforcement.Stamp{ID: "many"}}}
	for n := range wire.MaxBans - 1 {
		d.Bans.List = append(d.Bans.List, enforcement.Ban{Policy: "a", Key: fmt.Sprintf("%032x", n), Reason: "x"})
	}
	kept := enforcement.Kept{In: p.store}
	if err := kept.WriteEnforcement(t.Context(), enforcement.Write{Document: d}); err != nil {
		t.Fatal(err)
	}
	if w := p.put(`"0"`, otherHeader("x-a")); w.Code != 200 {
		t.Fatal(w.Body)
	}
	draft := call{"ed", "PUT", "/v1/policyset?nodes=50", map[string]string{"If-Match": `"1"`}, otherHeader("x-b")}
	if w := p.do(draft); w.Code != 200 {
		t.Fatal(w.Body)
	}
	header := map[string]string{"Content-Type": "application/json"}
	p.problem(p.do(call{"ed", "POST", "/v1/keys/a/ban?partition=alice", header, `{"reason": "x"}`}), 409, "too-many-bans")
	if k := p.key(t, call{who: "eyes", method: "GET", path: "/v1/keys/a?partition=alice"}); k.Ban != nil {
		t.Errorf("banned by one version: %+v", k.Ban)
	}
}

// A reset, a grant and a ban reach the callers of both versions, and each is one entry.
func TestActsReachBothVersions(t *testing.T) {
	p := rolledOut(t)
	const key = "?partition=alice"
	get := call{who: "eyes", method: "GET", path: "/v1/keys/differs" + key}
	bucket := p.key(t, get).Buckets[0].Bucket
	p.takes(t, 2, bucket, 1, 5)
	post := func(what, body string) {
		t.Helper()
		header := map[string]string{"Content-Type": "application/json"}
		if w := p.do(call{"ed", "POST", "/v1/keys/differs" + what + key, header, body}); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	entries := func() int {
		return len(decoded[api.AuditAnswer](t, p.do(call{who: "eyes", method: "GET", path: "/v1/audit"})).Entries)
	}
	before := entries()
	post("/grant", `{"reason": "x", "tokens": 2}`)
	if got := bucketsText(p.key(t, get)); got != "v1: 7 of 10 per 1h, v2: 2 of 5 per 1h" {
		t.Errorf("after a grant of 2: %s", got)
	}
	post("/reset", `{"reason": "x"}`)
	if got := bucketsText(p.key(t, get)); got != "v1: 10 of 10 per 1h, v2: 5 of 5 per 1h" {
		t.Errorf("after a reset: %s", got)
	}
	post("/ban", `{"reason": "x"}`)
	if n := entries() - before; n != 3 {
		t.Errorf("three acts are %d entries", n)
	}
}
