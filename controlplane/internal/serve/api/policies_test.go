package api_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

const shop = `version: weir/v1
policies:
  - name: api # per address
    partition: [client_ip]
    limit: {quota: 100, window: 1m}

  # One for all.
  - {name: all, partition: [], limit: {quota: 5, window: 1s}}
`

// edit is a write of the editor under a version.
func (p *plane) edit(method, path, ifMatch, body string, header ...string) *httptest.ResponseRecorder {
	p.t.Helper()
	c := call{"ed", method, path, map[string]string{"If-Match": ifMatch}, body}
	for i := 0; i+1 < len(header); i += 2 {
		c.header[header[i]] = header[i+1]
	}
	return p.do(c)
}

// done checks that a write made or would make a version, and returns its answer.
func (p *plane) done(w *httptest.ResponseRecorder, version uint64, summary string) api.PutAnswer {
	p.t.Helper()
	var got api.PutAnswer
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || got.Version != version ||
		got.Summary != summary {
		p.t.Fatalf("%d %s, want version %d: %s", w.Code, w.Body, version, summary)
	}
	if want := etagOf(version); got.DryRun != (w.Header().Get("ETag") == "") ||
		!got.DryRun && w.Header().Get("ETag") != want {
		p.t.Errorf("ETag %s after version %d", w.Header().Get("ETag"), version)
	}
	return got
}

// holds checks the current document and its version.
func (p *plane) holds(version uint64, doc string) {
	p.t.Helper()
	w := p.do(call{"eyes", "GET", "/v1/policyset", nil, ""})
	if w.Header().Get("ETag") != etagOf(version) || w.Body.String() != doc {
		p.t.Errorf("%s\n%s\nwant %d\n%s", w.Header().Get("ETag"), w.Body, version, doc)
	}
}

func TestOnePolicy(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, shop)
	for accept, want := range map[string]string{
		"":                 `{"name":"api","partition":["client_ip"],"limit":{"quota":100,"window":"1m"}}` + "\n",
		"application/yaml": "name: api # per address\npartition: [client_ip]\nlimit: {quota: 100, window: 1m}\n",
	} {
		w := p.do(call{"eyes", "GET", "/v1/policies/api", map[string]string{"Accept": accept}, ""})
		tag := map[string]string{"": `"1"`, "application/yaml": `"1-yaml"`}[accept]
		if w.Code != 200 || w.Body.String() != want || w.Header().Get("ETag") != tag ||
			w.Header().Get("Vary") != "Accept" ||
			accept != "" && w.Header().Get("Content-Type") != accept ||
			accept == "" && w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("accept %q: %d %v %s", accept, w.Code, w.Header(), w.Body)
		}
	}
	if w := p.do(call{"eyes", "GET", "/v1/policies/api", map[string]string{"If-None-Match": `"1"`}, ""}); w.Code != 304 || w.Body.Len() > 0 {
		t.Errorf("not modified: %d %s", w.Code, w.Body)
	}

	patch := `{"limit": {"quota": 80}, "mode": "strict"}`
	const said = "api: limit 100 per 1m → 80 per 1m; mode leased → strict"
	p.done(p.edit("PATCH", "/v1/policies/api?dry_run=true", `"1"`, patch, "Content-Type", "application/merge-patch+json"), 2, said)
	p.holds(1, shop)
	for _, tag := range []string{`"1-json-yaml"`, `"1-xml"`, `"1-"`, `"01-json"`, `"-json"`} {
		p.problem(p.edit("PATCH", "/v1/policies/api", tag, patch, "Content-Type", "application/merge-patch+json"), 400,
			"bad-request")
	}
	got := p.done(p.edit("PATCH", "/v1/policies/api", `"1-yaml"`, patch, "Content-Type", "application/merge-patch+json"), 2, said)
	if !reflect.DeepEqual(got.Diff.Words, []string{"~ " + said}) ||
		!reflect.DeepEqual(got.Diff.Changes[0],
			policies.FieldChange{Of: "api", Field: "limit", Before: "100 per 1m", After: "80 per 1m"}) {
		t.Errorf("%+v", got.Diff)
	}
	shop2 := strings.Replace(shop, "quota: 100, window: 1m}", "quota: 80, window: 1m}\n    mode: strict", 1)
	p.holds(2, shop2)

	p.done(p.edit("PUT", "/v1/policies/new", `"2"`, `{"partition": [], "limit": {"quota": 1, "window": "1m"}}`), 3, "new added: 1 per 1m; leased")
	shop3 := shop2 + "  - name: new\n    partition: []\n    limit: {quota: 1, window: 1m}\n"
	p.holds(3, shop3)
	p.done(p.edit("PUT", "/v1/policies/all", "*", "name: all\npartition: []\nlimit: {quota: 6, window: 1s} # more\n",
		"Content-Type", "text/yaml"), 4, "all: limit 5 per 1s → 6 per 1s")
	shop4 := strings.Replace(shop3, "  - {name: all, partition: [], limit: {quota: 5, window: 1s}}\n",
		"  - name: all\n    partition: []\n    limit: {quota: 6, window: 1s} # more\n", 1)
	p.holds(4, shop4)
	p.done(p.edit("DELETE", "/v1/policies/new", `"4"`, ""), 5, "new removed")
	p.problem(p.do(call{"eyes", "GET", "/v1/policies/new", nil, ""}), 404, "not-found")
	p.holds(5, strings.TrimSuffix(shop4, "  - name: new\n    partition: []\n    limit: {quota: 1, window: 1m}\n"))
}

func TestOnePolicyIsRefused(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, shop)
	for _, c := range []struct {
		who, method, path, ifMatch, contentType, body string
		status                                        int
		kind                                          string
	}{
		{"eyes", "GET", "/v1/policies/nobody", "", "", "", 404, "not-found"},
		{"eyes", "GET", "/v1/policies/", "", "", "", 404, "not-found"},
		{"envoy", "GET", "/v1/policies/api", "", "", "", 403, "forbidden"},
		{"eyes", "PATCH", "/v1/policies/api", `"1"`, "", "{}", 403, "forbidden"},
		{"eyes", "PUT", "/v1/policies/api", `"1"`, "", "{}", 403, "forbidden"},
		{"eyes", "DELETE", "/v1/policies/api", `"1"`, "", "", 403, "forbidden"},
		{"ed", "POST", "/v1/policies/api", `"1"`, "", "{}", 405, "method-not-allowed"},
		{"ed", "PATCH", "/v1/policies/api", "", "", "{}", 428, "precondition-required"},
		{"ed", "PUT", "/v1/policies/api", "", "", "{}", 428, "precondition-required"},
		{"ed", "DELETE", "/v1/policies/api", "", "", "", 428, "precondition-required"},
		{"ed", "PATCH", "/v1/policies/api", `"0"`, "", "{}", 412, "changed-meanwhile"},
		{"ed", "PUT", "/v1/policies/api?dry_run=true", `"2"`, "", "{}", 412, "changed-meanwhile"},
		{"ed", "DELETE", "/v1/policies/nobody", `"0"`, "", "", 412, "changed-meanwhile"},
		{"ed", "PATCH", "/v1/policies/nobody", "*", "", "{}", 404, "not-found"},
		{"ed", "DELETE", "/v1/policies/nobody", "*", "", "", 404, "not-found"},
		{"ed", "PATCH", "/v1/policies/api?dry_run=perhaps", "*", "", "{}", 400, "bad-request"},
		{"ed", "PATCH", "/v1/policies/api", "*", "application/yaml", "a: 1", 415, "unsupported-media-type"},
		{"ed", "PATCH", "/v1/policies/api", "*", "a b", "{}", 415, "unsupported-media-type"},
		{"ed", "PUT", "/v1/policies/api", "*", "text/html", "{}", 415, "unsupported-media-type"},
		{"ed", "PATCH", "/v1/policies/api", "*", "", "a: 1", 400, "unparsable"},
		{"ed", "PATCH", "/v1/policies/api", "*", "", "[]", 422, "invalid-policy-set"},
		{"ed", "PATCH", "/v1/policies/api", "*", "", `{"name": "other"}`, 422, "invalid-policy-set"},
		{"ed", "PUT", "/v1/policies/api", "*", "", "{}", 422, "invalid-policy-set"},
		{"ed", "PUT", "/v1/policies/Two%20Words", "*", "", `{"partition": [], "limit": {"quota": 1, "window": "1m"}}`, 422, "invalid-policy-set"},
		{"ed", "PATCH", "/v1/policies/api", "*", "", strings.Repeat(" ", 1<<20+1), 413, "too-large"},
		{"ed", "PUT", "/v1/policies/api", "*", "", strings.Repeat(" ", 1<<20+1), 413, "too-large"},
	} {
		t.Run(c.method+" "+c.path+" "+c.kind, func(t *testing.T) {
			header := map[string]string{"Content-Type": c.contentType, "If-Match": c.ifMatch}
			w := p.do(call{c.who, c.method, c.path, header, c.body})
			p.problem(w, c.status, c.kind)
			if c.status == 415 && c.method == "PATCH" && w.Header().Get("Accept-Patch") == "" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
	got := p.problem(p.edit("PATCH", "/v1/policies/all", "*", `{"limit": {"quota": -1}, "mode": "elastic"}`), 422, "invalid-policy-set")
	if len(got.Problems) != 2 || got.Problems[0].Path != "policies[1].limit.quota" ||
		got.Problems[1].Path != "policies[1].mode" {
		t.Errorf("the paths are those of the whole set: %v", got.Problems)
	}
	p.holds(1, shop)
	p.store.mode.Store("away")
	p.problem(p.edit("PATCH", "/v1/policies/api", "*", "{}"), 503, "store-unavailable")
	if w := p.do(call{"eyes", "GET", "/v1/policies/api", nil, ""}); w.Code != 200 ||
		w.Header().Get(api.HeldHeader) == "" {
		t.Errorf("the held document is not served: %d %v", w.Code, w.Header())
	}
}

// One of many editors who change the same version wins; the others are refused, and nothing of the
// winner's is lost.
func TestEditorsNeverOverwriteEachOther(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, shop)
	writes := []func() *httptest.ResponseRecorder{
		func() *httptest.ResponseRecorder {
			return p.edit("PATCH", "/v1/policies/api", `"1"`, `{"limit": {"quota": 1}}`)
		},
		func() *httptest.ResponseRecorder {
			return p.edit("PATCH", "/v1/policies/all", `"1"`, `{"limit": {"quota": 2}}`)
		},
		func() *httptest.ResponseRecorder { return p.edit("DELETE", "/v1/policies/all", `"1"`, "") },
		func() *httptest.ResponseRecorder { return p.edit("PUT", "/v1/policyset", `"1"`, set) },
	}
	codes := make([]int, 4*len(writes))
	var group sync.WaitGroup
	for i := range codes {
		group.Go(func() { codes[i] = writes[i%len(writes)]().Code })
	}
	group.Wait()
	won := 0
	for _, code := range codes {
		if code == 200 {
			won++
		} else if code != 412 {
			t.Errorf("status %d", code)
		}
	}
	if w := p.do(call{"eyes", "GET", "/v1/policyset", nil, ""}); won != 1 || w.Header().Get("ETag") != `"2"` {
		t.Errorf("%d of %d writes won, the version is %s", won, len(codes), w.Header().Get("ETag"))
	}

	// An editor that sends "If-Match: *" changes the document that the other editors left: nothing
	// is lost either.
	p.put("*", shop)
	for i := range codes {
		path := fmt.Sprintf("/v1/policies/p%d", i)
		body := fmt.Sprintf("{name: p%d, partition: [], limit: {quota: 7, window: 1s}}", i)
		group.Go(func() { codes[i] = p.edit("PUT", path, "*", body, "Content-Type", "application/yaml").Code })
	}
	group.Wait()
	w := p.do(call{"eyes", "GET", "/v1/policyset", nil, ""})
	if tag := w.Header().Get("ETag"); tag != etagOf(3+uint64(len(codes))) {
		t.Errorf("the version is %s", tag)
	}
	for i, code := range codes {
		if code != 200 || !strings.Contains(w.Body.String(), fmt.Sprintf("name: p%d,", i)) {
			t.Errorf("status %d; p%d is lost:\n%s", code, i, w.Body)
		}
	}
}
