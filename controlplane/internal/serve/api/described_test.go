package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	description "github.com/weir-proxy/weir/api"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// spec is the description of the interface, made stricter: answers have no field that it does not
// name. It does not promise that to clients, who would have to know each new field before it came.
var spec = sync.OnceValue(func() *openapi3.T {
	for _, contentType := range []string{wire.ContentType, "text/html"} {
		openapi3filter.RegisterBodyDecoder(contentType, openapi3filter.FileBodyDecoder)
	}
	doc, err := openapi3.NewLoader().LoadFromData(description.YAML)
	if err != nil {
		panic(err)
	}
	for name, ref := range doc.Components.Schemas {
		s := ref.Value
		if len(s.Properties) > 0 && s.AdditionalProperties.Has == nil && name != "PolicySet" && name != "Policy" {
			s.AdditionalProperties.Has = new(bool)
		}
	}
	return doc
})

// pathPatterns returns a pattern for each described path. It compiles them once, because tests make
// tens of thousands of requests.
var pathPatterns = sync.OnceValue(func() map[string]*regexp.Regexp {
	parameter, patterns := regexp.MustCompile(`\\\{[a-z]+\\\}`), map[string]*regexp.Regexp{}
	for path := range spec().Paths.Map() {
		pattern := parameter.ReplaceAllString(regexp.QuoteMeta(path), "[^/]+")
		patterns[path] = regexp.MustCompile("^" + pattern + "$")
	}
	return patterns
})

// operationOf finds the description of a request.
func operationOf(r *http.Request) (path string, item *openapi3.PathItem, op *openapi3.Operation) {
	for path, pattern := range pathPatterns() {
		if pattern.MatchString(r.URL.EscapedPath()) {
			item := spec().Paths.Value(path)
			return path, item, item.GetOperation(r.Method)
		}
	}
	return "", nil, nil
}

// asDescribed fails unless the description has an answer: its status, headers, media type and body.
// Every request of this package's tests is checked by it.
func (p *plane) asDescribed(r *http.Request, w *httptest.ResponseRecorder) {
	p.t.Helper()
	path, item, op := operationOf(r)
	if op == nil {
		if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
			p.t.Errorf("%s %s is answered with %d and not described", r.Method, r.URL.Path, w.Code)
		}
		return
	}
	happened.Store(fmt.Sprint(r.Method, " ", path, " ", w.Code), true)
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: r, Route: &routers.Route{Spec: spec(), Path: path, PathItem: item, Method: r.Method,
				Operation: op},
		},
		Status: w.Code, Header: w.Header(), Body: io.NopCloser(bytes.NewReader(w.Body.Bytes())),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), input); err != nil {
		p.t.Errorf("%s %s: %d %v %q is not as described: %v", r.Method, r.URL, w.Code, w.Header(),
			shortened(w.Body.String()), err)
	}
	if w.Code < 300 && w.Body.Len() == 0 && len(op.Responses.Status(w.Code).Value.Content) > 0 {
		p.t.Errorf("%s %s: the answer has no body", r.Method, r.URL)
	}
}

// happened are the answers that tests have got: method, path and status.
var happened sync.Map

// Every answer that the description has, some test gets; so none is described that cannot be.
func TestMain(m *testing.M) {
	code := m.Run()
	all := true // A run of some of the tests is about those.
	for _, filter := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		all = all && flag.Lookup(filter).Value.String() == ""
	}
	if code == 0 && all {
		for _, answer := range neverHappened() {
			fmt.Fprintln(os.Stderr, "described, and no test gets it:", answer)
			code = 1
		}
	}
	os.Exit(code)
}

func neverHappened() (answers []string) {
	elsewhere := []string{
		// Needs a store that regions share; TestTypesOfTheServicesAreDescribed holds its form.
		"GET /v1/regions 200",
		"GET /metrics 503",          // needs five scrapes at once
		"POST /v1/session 503",      // needs a browser that is faster than the start
		"GET /node/v1/snapshot 503", // needs a node that is faster than the start
	}
	for path, item := range spec().Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				answer := method + " " + path + " " + status
				if _, ok := happened.Load(answer); !ok && status != "500" && !slices.Contains(elsewhere, answer) {
					answers = append(answers, answer)
				}
			}
		}
	}
	slices.Sort(answers)
	return answers
}

func shortened(text string) string { return text[:min(len(text), 300)] }

func TestDescriptionIsValid(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(description.YAML)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil { // with its examples
		t.Error(err)
	}
	operations := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "" || operations[op.OperationID] || op.Summary == "" || len(op.Tags) != 1 ||
				doc.Tags.Get(op.Tags[0]) == nil {
				t.Errorf("%s %s has no summary, no id of its own, or no known tag", method, path)
			}
			operations[op.OperationID] = true
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.Description == "" ||
					strings.HasPrefix(path, "/v1/") && p.Value.Extensions["x-must"] == nil &&
						p.Value.Name != "If-None-Match" {
					t.Errorf("%s %s: %s lacks a description or x-must", method, path, p.Value.Name)
				}
				if p.Value.Required && p.Value.Example == nil && !strings.HasPrefix(path, "/node/") {
					t.Errorf("%s %s: %s lacks an example", method, path, p.Value.Name)
				}
			}
		}
	}
	limits := map[string]float64{"putPolicySet": policydoc.MaxBytes, "putPolicy": policydoc.MaxBytes,
		"patchPolicy": policydoc.MaxBytes}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			if want, ok := limits[op.OperationID]; ok && op.RequestBody.Value.Extensions["x-max-bytes"] != want {
				t.Errorf("%s: x-max-bytes is %v, want %v", op.OperationID,
					op.RequestBody.Value.Extensions["x-max-bytes"], want)
			}
		}
	}
}

func TestEveryRouteIsDescribed(t *testing.T) {
	served := api.Routes(newPlane(t).handler)
	var described []string
	for path, item := range spec().Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if !slices.Equal(served, described) {
		t.Errorf("served are\n%s\ndescribed are\n%s", strings.Join(served, "\n"), strings.Join(described, "\n"))
	}
}

// Without a token only these answer; the roles of the rest are the description's.
func TestOnlyTheseAreOpen(t *testing.T) {
	p := newPlane(t)
	open := []string{"GET /docs", "GET /healthz", "GET /metrics", "GET /openapi.json", "GET /openapi.yaml",
		"GET /readyz", "GET /readyz/store",
		"GET /v1/usage", "GET /version", "GET /console", "GET /console/{file}", "POST /v1/session",
		"DELETE /v1/session"}
	for path, item := range spec().Paths.Map() {
		for method, op := range item.Operations() {
			w := p.do(call{method: method,
				path: strings.NewReplacer("{name}", "a", "{version}", "1", "{id}", "x").Replace(path)})
			if isOpen := op.Security != nil &&
				len(*op.Security) == 0; isOpen != slices.Contains(open, method+" "+path) || isOpen == (w.Code == 401) ||
				!isOpen && w.Code != 401 {
				t.Errorf("%s %s is described as open: %v, and answers %d", method, path, isOpen, w.Code)
			}
		}
	}
}

func TestRequestsAreHeldAgainstTheDescription(t *testing.T) {
	p := withTiers(t)
	match := map[string]string{"If-Match": "*"}
	const alice = "/v1/consumers/alice?source=header:x-api-key"
	for _, c := range []struct {
		call
		status   int
		detail   string
		problems string
	}{
		{call{"eyes", "GET", "/v1/nodes?size=1", nil, ""}, 400, `there is no query parameter "size"; there are away, behind, fallen, page_size, page_token, search, zone`, ""},
		{call{"eyes", "GET", "/v1/policyset?dry_run=true", nil, ""}, 400, `there is no query parameter "dry_run"; this takes none`, ""},
		{call{"ed", "PUT", "/v1/policyset?dryrun=true", match, set}, 400, `there is no query parameter "dryrun"; there are abort_if, dry_run, nodes`, ""},
		{call{"ed", "PUT", "/v1/policyset?dry_run=true&dry_run=false", match, set}, 400,
			"dry_run is given 2 times; give it once", ""},
		{call{"ed", "PUT", "/v1/policyset?dry_run=1", match, set}, 400, "dry_run must be true or false", ""},
		{call{"ed", "PUT", "/v1/policyset?dry_run=", match, set}, 400, "dry_run must be true or false", ""},
		{call{"ed", "PUT", "/v1/policyset?dry_run=soon", map[string]string{"If-Match": "3"}, set}, 400, `If-Match must be one ETag like "3", or *; dry_run must be true or false`, ""},
		{call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": `"99999999999999999999"`}, set}, 400, `If-Match must be one ETag like "3", or *`, ""},
		{call{"eyes", "GET", "/v1/nodes?page_size=1.5", nil, ""}, 400, "page_size must be a whole number from 0 to 200",
			""},
		{call{"eyes", "GET", "/v1/nodes?page_size=99999999999", nil, ""}, 400,
			"page_size must be a whole number from 0 to 200", ""},
		{call{"eyes", "GET", "/v1/versions/9007199254740993", nil, ""}, 400, "version must be a whole number", ""},
		{call{"eyes", "GET", "/v1/versions/1/diff?against=-1", nil, ""}, 400, "against must be a whole number", ""},
		{call{"eyes", "GET", "/v1/nodes?a=%zz", nil, ""}, 400,
			"the query cannot be read: it must be name=value&name=value, percent-encoded", ""},
		{call{"ed", "PUT", alice, match, `{"tier": 1, "until": "tomorrow"}`}, 400, `the body must be JSON like {"tier":"premium"}`, "tier: must be of type string\nuntil: is not a field here"},
		{call{"ed", "PUT", alice, match, `{"Tier": "free"}`}, 400, `the body must be JSON like {"tier":"premium"}`, "Tier: is not a field here"},
		{call{"ed", "PUT", alice, match, `{"banned": {"until": 1}, "overrides": [{"policy": "api", "limit": {"quota": "5"}}]}`}, 400, `the body must be JSON like {"tier":"premium"}`,
			"banned.until: is not a field here\noverrides[0].limit.quota: must be of type integer"},
		{call{"ed", "PUT", alice, match, `{"overrides": [{"policy": "api", "limit": 5, "expires_at": "soon"}]}`}, 400, `the body must be JSON like {"tier":"premium"}`,
			"overrides[0].expires_at: must be a time like 2030-01-01T00:00:00Z\n" +
				"overrides[0].limit: must be of type object or array or string"},
		{call{"ed", "PUT", alice, match, "{\"tier\": \"fr\xe9e\"}"}, 400, `the body must be JSON like {"tier":"premium"}`, "is not UTF-8"},
		{call{"ed", "PUT", alice, match, `[]`}, 400, `the body must be JSON like {"tier":"premium"}`, "must be of type object"},
		{call{"ed", "PUT", alice, match, ``}, 400, `the body must be JSON like {"tier":"premium"}`, ""},
		{call{"ed", "PUT", alice, map[string]string{"If-Match": "*", "Content-Encoding": "gzip"}, `{"tier": "free"}`}, 415, "send the body without Content-Encoding", ""},
		{call{"ed", "DELETE", alice, map[string]string{"If-Match": "*", "Content-Encoding": "br"}, ``}, 415, "send the body without Content-Encoding", ""},
	} {
		t.Run(c.method+" "+c.path+" "+c.body, func(t *testing.T) {
			w := p.do(c.call)
			kind := map[int]string{400: "bad-request", 415: "unsupported-media-type"}[c.status]
			got := p.problem(w, c.status, kind)
			lines := strings.Split(got.Problems.Error(), "\n")
			slices.Sort(lines)
			if got.Detail != c.detail || strings.Join(lines, "\n") != c.problems {
				t.Errorf("%s\n%s\nwant\n%s\n%s", got.Detail, got.Problems.Error(), c.detail, c.problems)
			}
		})
	}
	// Probes, scrapes and newer filters may send unknown parameters.
	for _, c := range []call{
		{"", "GET", "/healthz?verbose", nil, ""}, {"", "GET", "/metrics?from=here", nil, ""},
		{"envoy", "GET", "/node/v1/snapshot?node=a&after=1&colour=blue", nil, ""},
	} {
		if w := p.do(c); w.Code >= 300 {
			t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
		}
	}
}

// example returns the description's example for an answer of an operation, or for its request if
// status is 0.
func example(t *testing.T, method, path string, status int) any {
	t.Helper()
	op := spec().Paths.Value(path).GetOperation(method)
	var content openapi3.Content
	if status == 0 {
		content = op.RequestBody.Value.Content
	} else {
		content = op.Responses.Status(status).Value.Content
	}
	for _, media := range content {
		if media.Example != nil {
			return media.Example
		}
	}
	t.Fatalf("%s %s has no example for %d", method, path, status)
	return nil
}

// The examples are true: each request gets the answer beside it.
func TestExamplesAreTrue(t *testing.T) {
	p := newPlane(t)
	shown := func(w *httptest.ResponseRecorder, method, path string, status int, besides ...string) {
		t.Helper()
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != status {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		want := maps.Clone(example(t, method, path, status).(map[string]any))
		for _, field := range besides { // the moment decides
			if (got[field] == nil) != (want[field] == nil) {
				t.Errorf("%s %s: %s is in one of both only", method, path, field)
			}
			delete(got, field)
			delete(want, field)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s %d:\n%v\nthe example is\n%v", method, path, status, got, want)
		}
	}
	asked := func(method, path string) string {
		body, err := json.Marshal(example(t, method, path, 0))
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	first := map[string]string{"If-Match": `"0"`}
	shown(p.do(call{"ed", "PUT", "/v1/policyset", first, asked("PUT", "/v1/policyset")}), "PUT", "/v1/policyset", 200)
	shown(p.do(call{"eyes", "GET", "/v1/policyset", map[string]string{"Accept": "application/json"}, ""}), "GET",
		"/v1/policyset", 200)
	shown(p.do(call{"eyes", "GET", "/v1/policies/api", nil, ""}), "GET", "/v1/policies/{name}", 200)
	shown(p.do(call{"eyes", "GET", "/v1/versions/1/diff", nil, ""}), "GET", "/v1/versions/{version}/diff", 200)
	version := example(t, "GET", "/v1/versions/{version}", 200).(map[string]any)
	sum := sha256.Sum256([]byte(version["document"].(string)))
	if version["digest"] != hex.EncodeToString(sum[:]) {
		t.Errorf("the digest of the example's document is %x", sum)
	}
	p = newPlane(t)
	p.do(call{"ed", "PUT", "/v1/policyset", first, version["document"].(string)})
	shown(p.do(call{"eyes", "GET", "/v1/versions/1", nil, ""}), "GET", "/v1/versions/{version}", 200, "time", "author")
	for _, c := range []call{
		{"ed", "PUT", "/v1/policies/api", map[string]string{"If-Match": "*"}, asked("PUT", "/v1/policies/{name}")},
		{"ed", "PATCH", "/v1/policies/api", map[string]string{"If-Match": "*"}, asked("PATCH", "/v1/policies/{name}")},
	} {
		if w := p.do(c); w.Code != 200 {
			t.Errorf("%s: %d %s", c.method, w.Code, w.Body)
		}
	}
	shown(p.do(call{"", "GET", "/healthz", nil, ""}), "GET", "/healthz", 200)
	shown(p.do(call{"", "GET", "/readyz", nil, ""}), "GET", "/readyz", 200)
	shown(p.do(call{"", "GET", "/readyz/store", nil, ""}), "GET", "/readyz/store", 200)
	shown(p.do(call{"", "GET", "/version", nil, ""}), "GET", "/version", 200, "version", "go")

	const id = "request_id"
	shown(p.do(call{"eyes", "GET", "/v1/versions?page_size=-1", nil, ""}), "GET", "/v1/versions", 400, id)
	shown(p.do(call{"", "GET", "/v1/versions", nil, ""}), "GET", "/v1/versions", 401, id)
	shown(p.do(call{"eyes", "DELETE", "/v1/policies/api", nil, ""}), "DELETE", "/v1/policies/{name}", 403, id)
	shown(p.do(call{"eyes", "GET", "/v1/policies/other", nil, ""}), "GET", "/v1/policies/{name}", 404, id)
	shown(p.do(call{"eyes", "GET", "/v1/consumers/alice", nil, ""}), "GET", "/v1/consumers/{id}", 409, id)
	shown(p.do(call{"ed", "PUT", "/v1/policyset", first, set}), "PUT", "/v1/policyset", 412, id)
	shown(p.do(call{"ed", "PUT", "/v1/policyset", first, strings.Repeat(" ", 1<<20+1)}), "PUT", "/v1/policyset", 413,
		id)
	shown(p.do(call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": "*", "Content-Encoding": "gzip"}, set}),
		"PUT", "/v1/policyset", 415, id)
	shown(p.do(call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": "*"},
		strings.Replace(set, "10", "-1", 1)}), "PUT", "/v1/policyset", 422, id)
	p.store.mode.Store("panic")
	shown(p.do(call{"eyes", "GET", "/v1/versions", nil, ""}), "GET", "/v1/versions", 500, id)
	p = newPlane(t) // It holds no policy set.
	p.store.mode.Store("away")
	shown(p.do(call{"eyes", "GET", "/v1/versions", nil, ""}), "GET", "/v1/versions", 503, id)

	p = withTiers(t)
	const alice = "/v1/consumers/alice?source=header:x-api-key"
	shown(p.do(call{"ed", "PUT", alice, first, asked("PUT", "/v1/consumers/{id}")}), "PUT", "/v1/consumers/{id}", 200,
		"updated", "by", "key")
	shown(p.do(call{"ed", "PUT", alice, first, `{"tier":"gold"}`}), "PUT", "/v1/consumers/{id}", 422, id)
	shown(p.do(call{"ed", "POST", "/v1/consumers", map[string]string{"If-Match": "*"}, asked("POST", "/v1/consumers")}),
		"POST", "/v1/consumers", 200)
}

func TestDescriptionIsServed(t *testing.T) {
	p := newPlane(t)
	if w := p.do(call{"", "GET", "/openapi.yaml", nil, ""}); !bytes.Equal(w.Body.Bytes(), description.YAML) {
		t.Error("openapi.yaml is another")
	}
	doc, err := openapi3.NewLoader().LoadFromData(p.do(call{"", "GET", "/openapi.json", nil, ""}).Body.Bytes())
	if err != nil || !doc.IsOpenAPI31OrLater() || len(doc.Paths.Map()) != len(spec().Paths.Map()) {
		t.Errorf("openapi.json: %v", err)
	}
	w := p.do(call{"", "GET", "/docs", nil, ""})
	page := w.Body.String()
	for _, want := range append(slices.Collect(maps.Keys(spec().Paths.Map())), "curl -X PUT -H",
		"urn:weir:problem:forbidden", "dry_run", "default") {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, "ZgotmplZ") || strings.Contains(page, "<script") || regexp.MustCompile(`(src|href)="(https?:)?//`).MatchString(page) {
		t.Error("the page needs something from elsewhere, or a value was refused")
	}
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(page)
	sum := sha256.Sum256([]byte(style[1]))
	if policy := w.Header().Get("Content-Security-Policy"); !strings.Contains(policy,
		"default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
		t.Errorf("the policy does not allow the page's style: %s", policy)
	}
	for _, path := range []string{"/docs", "/openapi.yaml", "/openapi.json", "/v1/policyset"} {
		w := p.do(call{"eyes", "GET", path, map[string]string{"Origin": "https://example.com"}, ""})
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is open to other origins", path)
		}
	}
}

// Types that the description takes over from the services have the fields that it names.
func TestTypesOfTheServicesAreDescribed(t *testing.T) {
	for name, value := range map[string]any{
		"Version": policies.Version{}, "Diff": policies.Diff{}, "FieldChange": policies.FieldChange{},
		"Regions": regions.View{}, "Share": regions.Share{},
		"Decision": decisions.Decision{}, "Level": decisions.Level{}, "TopCaller": decisions.TopCaller{},
		"Problem": api.Problem{}, "FieldProblem": policy.Problem{},
	} {
		var fields, always []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(value)) {
			switch tag, option, _ := strings.Cut(f.Tag.Get("json"), ","); {
			case tag == "-":
			case option == "omitempty":
				fields = append(fields, tag)
			default:
				fields, always = append(fields, tag), append(always, tag)
			}
		}
		s := spec().Components.Schemas[name].Value
		required := slices.Clone(s.Required)
		if name == "Problem" { // Every answer has an id.
			always = append(always, "request_id")
		}
		slices.Sort(required)
		slices.Sort(always)
		slices.Sort(fields)
		if described := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(fields, described) ||
			!slices.Equal(always, required) {
			t.Errorf("%s has the fields %v, always %v; described are %v, required %v", name, fields, always, described,
				required)
		}
	}
	view := regions.View{Region: "eu", Weights: map[string]int64{"eu": 1},
		Held: map[string]map[string]int64{"a": {"eu": 1}}, Age: -1, Trouble: "x"}
	for _, moved := range []map[string]regions.Share{nil, {}, {"a": {Using: 1, Given: 2}}} {
		view.Moved = moved
		var decoded any
		text, err := json.Marshal(view)
		if err != nil || json.Unmarshal(text, &decoded) != nil {
			t.Fatal(err)
		}
		if err := spec().Components.Schemas["Regions"].Value.VisitJSON(decoded, openapi3.EnableJSONSchema2020()); err !=
			nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The answers that no other test is about.
func TestEveryOperationRefusesInItsWords(t *testing.T) {
	p := withTiers(t)
	const alice = "/v1/consumers/alice?source=header:x-api-key"
	const batch = `{"consumers": [{"id": "a", "source": "header:x-api-key", "tier": "free"}]}`
	match := func(name, value string) map[string]string { return map[string]string{"If-Match": "*", name: value} }
	for path, item := range spec().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Security == nil || len(*op.Security) == 0 {
				continue
			}
			who := "envoy"
			if (*op.Security)[0]["bearer"][0] != "viewer" {
				who = "eyes"
			}
			path := strings.NewReplacer("{name}", "a", "{version}", "1", "{id}", "x").Replace(path)
			p.problem(p.do(call{who: who, method: method, path: path}), 403, "forbidden")
		}
	}
	for _, c := range []struct {
		call
		status int
		kind   string
	}{
		{call{"ed", "DELETE", alice, match("If-Match", "x"), ""}, 400, "bad-request"},
		{call{"ed", "POST", "/v1/consumers", match("If-Match", `"0"`), batch}, 400, "bad-request"},
		{call{"ed", "POST", "/v1/consumers", match("If-Match", ""), batch}, 428, "precondition-required"},
		{call{"ed", "POST", "/v1/consumers", match("Content-Encoding", "gzip"), batch}, 415, "unsupported-media-type"},
		{call{"ed", "POST", "/v1/consumers", match("", ""), strings.Repeat(" ", 4<<20+1)}, 413, "too-large"},
		{call{"ed", "DELETE", alice, match("If-Match", `"7"`), ""}, 412, "changed-meanwhile"},
		{call{"ed", "DELETE", "/v1/policies/a?x=1", match("", ""), ""}, 400, "bad-request"},
		{call{"ed", "DELETE", "/v1/policies/a", match("Content-Encoding", "gzip"), ""}, 415, "unsupported-media-type"},
		{call{"ed", "PUT", "/v1/policies/a", match("If-Match", "x"), "{}"}, 400, "bad-request"},
		{call{"ed", "POST", "/v1/versions/1/rollback", match("Content-Encoding", "gzip"), ""}, 415,
			"unsupported-media-type"},
		{call{"eyes", "GET", "/v1/policies/a?x=1", nil, ""}, 400, "bad-request"},
		{call{"eyes", "GET", "/v1/regions?x=1", nil, ""}, 400, "bad-request"},
		{call{"eyes", "GET", "/v1/regions", nil, ""}, 404, "not-found"},
		{call{"envoy", "POST", "/node/v1/consumers", nil, strings.Repeat("x", 2<<10+1)}, 413, "too-large"},
	} {
		p.problem(p.do(c.call), c.status, c.kind)
	}
	bare := newPlane(t)
	bare.problem(bare.do(call{"ed", "PUT", "/v1/consumers/alice", match("", ""), `{"tier": "free"}`}), 409, "no-consumers")
	bare.problem(bare.do(call{"ed", "DELETE", "/v1/consumers/alice", match("", ""), ""}), 409, "no-consumers")
	bare.problem(bare.do(call{"ed", "POST", "/v1/consumers", match("", ""), batch}), 409, "no-consumers")

	question := string(wire.AppendQuestion(nil, []keyhash.Key{{1}}))
	p.store.mode.Store("away")
	for _, c := range []call{
		{"eyes", "GET", "/v1/consumers?page_token=eA", nil, ""},
		{"ed", "DELETE", alice, match("", ""), ""},
		{"ed", "POST", "/v1/consumers", match("", ""), batch},
		{"envoy", "POST", "/node/v1/consumers", nil, question},
		{"eyes", "GET", "/v1/versions/7", nil, ""},
		{"eyes", "GET", "/v1/versions/7/diff", nil, ""},
		{"ed", "POST", "/v1/versions/1/rollback", match("", ""), ""},
		{"ed", "PUT", "/v1/policies/a", match("", ""), "{}"},
		{"ed", "DELETE", "/v1/policies/a", match("", ""), ""},
	} {
		p.problem(p.do(c), 503, "store-unavailable")
	}
}
