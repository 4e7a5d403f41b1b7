package api_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

const named = `
version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: login, partition: [consumer], limit: {quota: 10, window: 1m}, penalty: {after: {refusals: 5, within: 1m}, for: 1m}}
`

// misspelt is, by parameter, a value that is near to a name which there is, and that name. A name
// of which nothing is known, not even by a guess, is in the table of names that follows it.
var misspelt = map[string][2]string{
	"policy": {"logni", "login"}, "name": {"logni", "login"}, "tier": {"fre", "free"}, "node": {"envoy-2", "envoy-1"},
	"zone": {"eu-b", "eu-a"}, "by": {"rooot", "root"}, "resource": {"polices/login", "policies"},
	"source": {"header:x-api-ky", "header:x-api-key"}, "partition": {"consumer=alice", "consumer:alice"},
}

// free are the parameters that name nothing: any text is a sensible question.
var free = map[string]bool{
	"since": true, "search": true, "id": true, "consumer": true, "key": true, "nodes": true, "page_token": true,
	"abort_if": true, "If-Match": true, "If-None-Match": true, "X-Api-Key": true,
}

// bodies are the bodies of operations that are refused without a body.
var bodies = map[string]string{
	"POST /v1/keys/{policy}/reset": `{"reason": "x"}`, "POST /v1/keys/{policy}/grant": `{"reason": "x", "tokens": 1}`,
	"POST /v1/keys/{policy}/ban": `{"reason": "x"}`, "POST /v1/penalties/pardon": `{"reason": "x"}`,
	"PUT /v1/consumers/{id}": `{"tier": "free"}`, "PATCH /v1/policies/{name}": `{"mode": "strict"}`,
}

// A question with a typo is refused, with the name and a guess. It is never answered with an empty
// list, which would read like "all is well". The table has all operations and all of their
// parameters: a new parameter that is neither a name nor free fails.
func TestNoQuestionIsAnsweredForANameThatIsNone(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, named); w.Code != 200 {
		t.Fatal(w.Body)
	}
	p.do(call{"envoy", "GET", "/node/v1/snapshot?node=envoy-1&boot=1&zone=eu-a", nil, ""})
	tried := map[string]int{}
	for path, item := range spec().Paths.Map() {
		for method, op := range item.Operations() {
			if !strings.HasPrefix(path, "/v1/") || path == "/v1/session" {
				continue
			}
			for _, ref := range append(item.Parameters, op.Parameters...) {
				if names(t, ref.Value) && !(method == "PUT" && path == "/v1/policies/{name}") { // It makes a policy.
					tried[ref.Value.Name]++
					p.refusesTypo(method, path, ref.Value)
				}
			}
		}
	}
	for name := range misspelt {
		if tried[name] == 0 {
			t.Errorf("no operation has a parameter %s: take it out of the table", name)
		}
	}
}

// names reports whether a parameter names something that there must be.
func names(t *testing.T, parameter *openapi3.Parameter) bool {
	t.Helper()
	schema := parameter.Schema.Value
	if schema.Type.Is("array") {
		schema = schema.Items.Value
	}
	if !schema.Type.Is("string") || len(schema.Enum) > 0 || free[parameter.Name] {
		return false
	}
	if _, known := misspelt[parameter.Name]; !known {
		t.Errorf("the parameter %s is in no table: does it name something?", parameter.Name)
	}
	return true
}

// refusesTypo asks with the name of the parameter misspelt, and all others right.
func (p *plane) refusesTypo(method, path string, wrong *openapi3.Parameter) {
	p.t.Helper()
	typo, right := misspelt[wrong.Name][0], misspelt[wrong.Name][1]
	query := url.Values{}
	in := map[string]string{"policy": "login", "name": "login", "id": "alice"}
	if wrong.In == openapi3.ParameterInPath {
		in[wrong.Name] = typo
	} else {
		query.Set(wrong.Name, typo)
	}
	switch {
	case wrong.Name == "node":
		query.Set("by", "node")
	case wrong.Name == "by":
	case strings.HasPrefix(path, "/v1/keys/") && wrong.Name != "partition":
		query.Set("partition", "consumer:alice")
	case wrong.Name == "partition" && !strings.HasPrefix(path, "/v1/keys/"):
		query.Set("policy", "login")
	case wrong.Name == "source" && !strings.HasPrefix(path, "/v1/consumers/"):
		query.Set("consumer", "alice")
	}
	at := path
	for name, value := range in {
		at = strings.ReplaceAll(at, "{"+name+"}", value)
	}
	header := map[string]string{}
	if method != http.MethodGet {
		header["If-Match"] = "*"
	}
	body := bodies[method+" "+path]
	if body != "" {
		header["Content-Type"] = "application/json"
	}
	if method == http.MethodPatch {
		header["Content-Type"] = "application/merge-patch+json"
	}
	w := p.do(call{"root", method, at + "?" + query.Encode(), header, body})
	if said := w.Body.String(); w.Code != 400 && w.Code != 404 || !strings.Contains(said, right) {
		p.t.Errorf("%s %s?%s: %d %s, want a refusal that names %s", method, at, query.Encode(), w.Code, said, right)
	}
}

// Counts are shown under the name of their policy, even if the policy is gone.
func TestWhatIsCountedIsShownOfAPolicyThatIsGone(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, limited); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := p.do(call{"envoy", "POST", "/node/v1/report", nil, p.report()}); w.Code != 204 {
		t.Fatal(w.Code, w.Body)
	}
	if err := p.past.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w := p.put(`*`, named); w.Code != 200 {
		t.Fatal(w.Body)
	}
	for _, question := range []string{"/v1/decisions?policy=a", "/v1/top?policy=a", "/v1/series?policy=a"} {
		if w := p.do(call{"eyes", "GET", question, nil, ""}); w.Code != 200 {
			t.Errorf("%s: %d %s", question, w.Code, w.Body)
		}
	}
}
