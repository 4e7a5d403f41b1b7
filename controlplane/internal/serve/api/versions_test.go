package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

func TestRollback(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, shop)
	p.done(p.edit("PATCH", "/v1/policies/api", `"1"`, `{"limit": {"quota": 80}}`), 2, "api: limit 100 per 1m → 80 per 1m")
	const back = "back to version 1: api: limit 80 per 1m → 100 per 1m"
	p.done(p.edit("POST", "/v1/versions/1/rollback?dry_run=true", `"2"`, ""), 3, back)
	p.done(p.edit("POST", "/v1/versions/1/rollback", `"2"`, ""), 3, back)
	p.holds(3, shop)
	var v api.VersionAnswer
	w := p.do(call{"eyes", "GET", "/v1/versions/3", nil, ""})
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || v.Number != 3 || v.Author != "ed" ||
		v.Summary != back || v.Text != shop ||
		v.Format != policydoc.YAML || w.Header().Get("ETag") != `"3"` {
		t.Errorf("%s: %v", w.Body, err)
	}
	for _, c := range []struct {
		who, path, ifMatch string
		status             int
		kind               string
	}{
		{"ed", "/v1/versions/1/rollback", "", 428, "precondition-required"},
		{"ed", "/v1/versions/1/rollback", `"2"`, 412, "changed-meanwhile"},
		{"ed", "/v1/versions/9/rollback", "*", 404, "not-found"},
		{"ed", "/v1/versions/0/rollback", "*", 404, "not-found"},
		{"ed", "/v1/versions/x/rollback", "*", 400, "bad-request"},
		{"eyes", "/v1/versions/1/rollback", "*", 403, "forbidden"},
	} {
		p.problem(p.do(call{c.who, "POST", c.path, map[string]string{"If-Match": c.ifMatch}, ""}), c.status, c.kind)
	}
	p.holds(3, shop)
}

func TestDiffOfVersions(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, shop)
	p.edit("PATCH", "/v1/policies/api", `"1"`, `{"limit": {"quota": 80}}`)
	p.edit("DELETE", "/v1/policies/all", `"2"`, "")
	for query, want := range map[string]string{
		"/v1/versions/2/diff":           "~ api: limit 100 per 1m → 80 per 1m",
		"/v1/versions/3/diff?against=1": "~ api: limit 100 per 1m → 80 per 1m\n- all",
		"/v1/versions/1/diff?against=3": "~ api: limit 80 per 1m → 100 per 1m\n+ all: 5 per 1s; leased",
		"/v1/versions/1/diff":           "+ api: 100 per 1m; leased\n+ all: 5 per 1s; leased",
		"/v1/versions/0/diff?against=2": "- api\n- all",
		"/v1/versions/2/diff?against=2": "",
	} {
		got := decoded[api.DiffAnswer](t, p.do(call{"eyes", "GET", query, nil, ""}))
		if strings.Join(got.Diff.Words, "\n") != want || got.Summary != got.Diff.String() && got.Summary == "" {
			t.Errorf("%s: %+v", query, got)
		}
	}
	p.problem(p.do(call{"eyes", "GET", "/v1/versions/9/diff", nil, ""}), 404, "not-found")
	if got := p.problem(p.do(call{"eyes", "GET", "/v1/versions/2/diff?against=7", nil, ""}), 404,
		"not-found"); !strings.Contains(got.Detail, "version: 7") {
		t.Error(got.Detail)
	}
	p.problem(p.do(call{"eyes", "GET", "/v1/versions/2/diff?against=x", nil, ""}), 400, "bad-request")
	p.problem(p.do(call{"envoy", "GET", "/v1/versions/2/diff", nil, ""}), 403, "forbidden")
}

// A version that another build has written is shown as it is, and neither compared nor gone back
// to.
func TestVersionsOfOtherBuilds(t *testing.T) {
	p := newPlane(t)
	doc := []byte("version: weir/v1\nfuture: {}\npolicies:\n" +
		"  - {name: a, partition: [], limit: {quota: 1, window: 1s}}\n")
	sum := sha256.Sum256(doc)
	err := p.store.Append(t.Context(), 0,
		policies.Version{Number: 1, Time: time.Now(), Author: "later", Digest: hex.EncodeToString(sum[:]),
			Summary: "x", Format: policydoc.YAML, Document: doc}, audit.Entry{})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.problem(p.edit("DELETE", "/v1/policies/a", `"1"`, ""), 422, "invalid-policy-set"); len(got.Problems) != 1 || got.Problems[0].Path != "future" {
		t.Errorf("%+v", got)
	}
	if w := p.put(`"1"`, shop); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := p.do(call{"eyes", "GET", "/v1/versions/1", nil, ""}); w.Code != 200 ||
		!strings.Contains(w.Body.String(), "future") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	got := p.problem(p.edit("POST", "/v1/versions/1/rollback", "*", ""), 409, "unreadable")
	if len(got.Problems) != 1 || got.Problems[0].Path != "future" ||
		!strings.Contains(got.Detail, "put it as a whole") {
		t.Errorf("%+v", got)
	}
	p.problem(p.do(call{"eyes", "GET", "/v1/versions/2/diff", nil, ""}), 409, "unreadable")
	p.holds(2, shop)
}
