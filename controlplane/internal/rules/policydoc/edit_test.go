package policydoc_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

const written = `# The policy set of the shop.
version:   weir/v1   # aligned by hand

headers: {legacy: "off"}


policies:
  # Everyone.
  - name: api      # per address
    partition: [client_ip]

    # Raised in March.
    limit: {quota: 100, window: 1m}   # agreed with sales
    mode: leased
    # Last of the first.
  # The expensive one.

  - {name: search, partition: [], limit: {quota: 5, window: 1s}}

  # Last.
  - name: "login"
    partition: [client_ip]
    limit:
      quota: 5
      window: 1m
    response:
      body: |
        Slow down.
        # not a comment

# Exempt comes last.
exempt:
  paths: [/healthz]
`

// change replaces a line or block of the document.
type change struct{ from, to string }

func edited(changes ...change) string {
	text := written
	for _, c := range changes {
		if strings.Count(text, c.from) != 1 {
			panic("not once: " + c.from)
		}
		text = strings.Replace(text, c.from, c.to, 1)
	}
	return text
}

// A YAML document keeps every line that the edit is not about, and the policy keeps its comments.
func TestEditsKeepTheRestOfTheDocument(t *testing.T) {
	patch := func(name, body string) func() ([]byte, error) {
		return func() ([]byte, error) {
			return policydoc.PatchPolicy([]byte(written), policydoc.YAML, name, []byte(body))
		}
	}
	put := func(name, body string, format policydoc.Format) func() ([]byte, error) {
		return func() ([]byte, error) {
			return policydoc.PutPolicy([]byte(written), policydoc.YAML, name, []byte(body), format)
		}
	}
	drop := func(name string) func() ([]byte, error) {
		return func() ([]byte, error) { return policydoc.DeletePolicy([]byte(written), policydoc.YAML, name) }
	}
	api := "  - name: api      # per address\n    partition: [client_ip]\n\n    # Raised in March.\n" +
		"    limit: {quota: 100, window: 1m}   # agreed with sales\n    mode: leased\n    # Last of the first.\n"
	for name, c := range map[string]struct {
		edit func() ([]byte, error)
		want string
	}{
		"a field of a field": {patch("api", `{"limit": {"quota": 80}}`), edited(change{api,
			"  - name: api # per address\n    partition: [client_ip]\n    # Raised in March.\n" +
				"    limit: {quota: 80, window: 1m} # agreed with sales\n    mode: leased\n" +
				"    # Last of the first.\n"})},
		"a field goes, one comes": {patch("api", `{"mode": null, "enforcement": "off", "cost": {"header": "x-cost", "max": 5}}`), edited(change{api,
			"  - name: api # per address\n    partition: [client_ip]\n    # Raised in March.\n" +
				"    limit: {quota: 100, window: 1m} # agreed with sales\n    enforcement: \"off\"\n" +
				"    cost: {header: x-cost, max: 5}\n"})},
		"on one line": {patch("search", `{"limit": {"quota": 6}}`), edited(change{"{quota: 5, window: 1s}", "{quota: 6, window: 1s}"})},
		"a list": {patch("search", `{"limit": [{"quota": 1, "window": "1s"}, {"quota": 9, "window": "1m"}]}`),
			edited(change{"{quota: 5, window: 1s}", "[{quota: 1, window: 1s}, {quota: 9, window: 1m}]"})},
		"the same": {patch("search", `{}`), written},
		"replaced by YAML": {put("search",
			"# new\nname: search\npartition: [] # one for all\nlimit: {quota: 6, window: 1s}\n", policydoc.YAML),
			edited(change{"  - {name: search, partition: [], limit: {quota: 5, window: 1s}}\n",
				"  - # new\n    name: search\n    partition: [] # one for all\n    limit: {quota: 6, window: 1s}\n"})},
		"replaced by JSON": {put("api", `{"partition": ["client_ip"], "limit": {"quota": 100, "window": "1m"}}`, policydoc.JSON),
			edited(change{api, "  - name: api # per address\n    partition: [client_ip]\n    # Raised in March.\n" +
				"    limit: {quota: 100, window: 1m} # agreed with sales\n"})},
		"added": {put("new", `{"partition": [], "match": {"paths": ["/a", "/b"]}, "limit": {"quota": 1, "window": "1m"}}`, policydoc.JSON),
			edited(change{"        # not a comment\n",
				"        # not a comment\n  - name: new\n    partition: []\n    match:\n      paths: [/a, /b]\n" +
					"    limit: {quota: 1, window: 1m}\n"})},
		"removed": {drop("search"),
			edited(change{"  - {name: search, partition: [], limit: {quota: 5, window: 1s}}\n", ""})},
		"removed, the first": {drop("api"), edited(change{"  # Everyone.\n" + api, ""})},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.edit()
			if err != nil || string(got) != c.want {
				t.Errorf("%v\n%s\nwant\n%s", err, got, c.want)
			}
		})
	}
}

// A value without its own lines is written anew, and keeps its meaning.
func TestEditsOfOtherLayouts(t *testing.T) {
	for name, c := range map[string]struct{ doc, want string }{
		"empty": {"version: weir/v1\npolicies: []\n",
			"version: weir/v1\npolicies:\n  - name: a\n    partition: []\n    limit: {quota: 1, window: 1m}\n"},
		"missing": {"# set\nversion: weir/v1 # one",
			"# set\nversion: weir/v1 # one\npolicies:\n  - name: a\n    partition: []\n" +
				"    limit: {quota: 1, window: 1m}\n"},
		"no newline": {"version: weir/v1\npolicies:\n- name: a\n  mode: local",
			"version: weir/v1\npolicies:\n- name: a\n  partition: []\n  limit: {quota: 1, window: 1m}\n"},
		"one line": {"{version: weir/v1, policies: [{name: a}, {name: b}]}",
			"{version: weir/v1, policies: [{name: a, partition: [], limit: {quota: 1, window: 1m}}, {name: b}]}\n"},
		"aliases": {"version: weir/v1\npolicies:\n- name: a\n  limit: &l {quota: 7, window: 1s} # seven\n- name: b\n" +
			"  limit: *l\n",
			"version: weir/v1\npolicies:\n  - name: a\n    partition: []\n    limit: {quota: 1, window: 1m} # seven\n" +
				"  - name: b\n    limit: {quota: 7, window: 1s}\n"},
		"JSON": {`{"version": "weir/v1", "policies": [{"name": "b"}]}`, "{\n  \"version\": \"weir/v1\",\n  \"policies\": [\n    {\n      \"name\": \"b\"\n    },\n    {\n      \"name\": \"a\",\n      " +
			"\"partition\": [],\n      \"limit\": {\n        \"quota\": 1,\n        \"window\": \"1m\"\n      }\n" +
			"    }\n  ]\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := policydoc.PutPolicy([]byte(c.doc), policydoc.Sniff([]byte(c.doc)), "a", []byte(`{"partition": [], "limit": {"quota": 1, "window": "1m"}}`), policydoc.JSON)
			if err != nil || string(got) != c.want {
				t.Errorf("%v\n%s\nwant\n%s", err, got, c.want)
			}
		})
	}
	for _, doc := range []string{"version: weir/v1\npolicies:\n  - name: a\n",
		"version: weir/v1\npolicies: [{name: a}]\n"} {
		if got, err := policydoc.DeletePolicy([]byte(doc), policydoc.YAML, "a"); err != nil ||
			string(got) != "version: weir/v1\npolicies: []\n" {
			t.Errorf("the last one is removed: %v\n%s", err, got)
		}
	}
}

// In each example each policy can be edited alone: exactly its limit changes, and changing it back
// leads to the same meaning.
func TestEditsOfTheExamples(t *testing.T) {
	files, err := filepath.Glob("../../../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, err := policydoc.Load(doc, policydoc.YAML)
		if err != nil {
			t.Fatal(file, err)
		}
		for i, p := range before.Policies {
			const patch = `{"enforcement": "off", "response": {"body": "a: b\n# c", "content_type": "text/plain"}}`
			out, err := policydoc.PatchPolicy(doc, policydoc.YAML, p.Name, []byte(patch))
			if err != nil {
				t.Errorf("%s, %s: %v", file, p.Name, err)
				continue
			}
			after, err := policydoc.Load(out, policydoc.YAML)
			if err != nil {
				t.Fatalf("%s, %s: %v\n%s", file, p.Name, err, out)
			}
			want := slices.Clone(before.Policies)
			want[i].Enforced = policy.EnforcedOff
			want[i].Response.Body, want[i].Response.ContentType = "a: b\n# c", "text/plain"
			if !reflect.DeepEqual(after.Policies, want) ||
				strings.Count(string(out), "#") < strings.Count(string(doc), "#") {
				t.Errorf("%s, %s became\n%s", file, p.Name, out)
			}
		}
	}
}

func TestPolicy(t *testing.T) {
	const asJSON = `{"version": "weir/v1", "policies": [{"name": "a", "match": {"paths": ["/1"]}, "enforcement": "off", "partition": []}]}`
	for _, c := range []struct {
		doc, name    string
		format, want policydoc.Format
		text         string
	}{
		{written, "search", policydoc.YAML, policydoc.JSON, `{"name":"search","partition":[],"limit":{"quota":5,"window":"1s"}}` + "\n"},
		{written, "api", policydoc.YAML, policydoc.YAML,
			"name: api # per address\npartition: [client_ip]\n# Raised in March.\n" +
				"limit: {quota: 100, window: 1m} # agreed with sales\nmode: leased\n# Last of the first.\n"},
		{asJSON, "a", policydoc.JSON, policydoc.JSON, `{"name":"a","match":{"paths":["/1"]},"enforcement":"off","partition":[]}` + "\n"},
		{asJSON, "a", policydoc.JSON, policydoc.YAML,
			"name: a\nmatch:\n  paths: [/1]\nenforcement: \"off\"\npartition: []\n"},
	} {
		if got, err := policydoc.Policy([]byte(c.doc), c.format, c.name, c.want); err != nil || string(got) != c.text {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, c.text)
		}
	}
}

func TestEditsAreRefused(t *testing.T) {
	doc := []byte(written)
	var syntax *policydoc.SyntaxError
	var problems policy.Problems
	for name, c := range map[string]struct {
		edit func() ([]byte, error)
		is   func(error) bool
	}{
		"get a stranger": {func() ([]byte, error) {
			return policydoc.Policy(doc, policydoc.YAML, "x", policydoc.JSON)
		}, func(err error) bool { return errors.Is(err, policydoc.ErrNoPolicy) }},
		"patch a stranger": {func() ([]byte, error) {
			return policydoc.PatchPolicy(doc, policydoc.YAML, "x", []byte("{}"))
		}, func(err error) bool { return errors.Is(err, policydoc.ErrNoPolicy) }},
		"delete a stranger": {func() ([]byte, error) { return policydoc.DeletePolicy(doc, policydoc.YAML, "x") },
			func(err error) bool { return errors.Is(err, policydoc.ErrNoPolicy) }},
		"rename": {func() ([]byte, error) {
			return policydoc.PatchPolicy(doc, policydoc.YAML, "api", []byte(`{"name": "b"}`))
		}, func(err error) bool { return errors.As(err, &problems) && problems[0].Path == "name" }},
		"take the name away": {func() ([]byte, error) {
			return policydoc.PatchPolicy(doc, policydoc.YAML, "api", []byte(`{"name": null}`))
		}, func(err error) bool { return errors.As(err, &problems) && problems[0].Path == "name" }},
		"another name": {func() ([]byte, error) {
			return policydoc.PutPolicy(doc, policydoc.YAML, "api", []byte("name: b"), policydoc.YAML)
		}, func(err error) bool { return errors.As(err, &problems) && problems[0].Path == "name" }},
		"twice": {func() ([]byte, error) {
			return policydoc.PatchPolicy(doc, policydoc.YAML, "api", []byte(`{"limit": {"quota": 1, "quota": 2}}`))
		}, func(err error) bool { return errors.As(err, &problems) && problems[0].Path == "limit.quota" }},
		"no mapping": {func() ([]byte, error) { return policydoc.PatchPolicy(doc, policydoc.YAML, "api", []byte(`[1]`)) }, func(err error) bool { return errors.As(err, &problems) }},
		"no JSON":    {func() ([]byte, error) { return policydoc.PatchPolicy(doc, policydoc.YAML, "api", []byte(`a: 1`)) }, func(err error) bool { return errors.As(err, &syntax) }},
		"no YAML": {func() ([]byte, error) {
			return policydoc.PutPolicy(doc, policydoc.YAML, "api", []byte(`[`), policydoc.YAML)
		}, func(err error) bool { return errors.As(err, &syntax) }},
	} {
		if out, err := c.edit(); !c.is(err) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// Whatever the document and the body: the result has exactly the wanted change, or there is no
// result.
func FuzzPatchPolicy(f *testing.F) {
	f.Add(written, "api", `{"limit": {"quota": 80}}`)
	f.Add("policies:\n- &a {name: api, x: [1]} # c\n- *a\n", "api", `{"x": null}`)
	f.Add("policies:\n  -\n    name: api\n  # c\n", "api", `{"y": "a\nb"}`)
	f.Add("a: &p [{name: api}]\npolicies: *p", "api", `{"y": [[], {}]}`)
	f.Add("policies:\n- name: api\n  b: >-\n    x\n\n\n- name: c\n...\n", "api", `{"y": "- z: #"}`)
	f.Fuzz(func(t *testing.T, doc, name, patch string) {
		out, err := policydoc.PatchPolicy([]byte(doc), policydoc.YAML, name, []byte(patch))
		if err != nil {
			return
		}
		before, err := policydoc.Policy([]byte(doc), policydoc.YAML, name, policydoc.JSON)
		if err != nil {
			t.Fatal(err)
		}
		after, err := policydoc.Policy(out, policydoc.YAML, name, policydoc.JSON)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		again, err := policydoc.PatchPolicy(before, policydoc.JSON, name, []byte(patch))
		if err == nil && !strings.Contains(string(again), strings.TrimSpace(string(after))) {
			t.Fatalf("%s", again)
		}
	})
}

// The examples of RFC 7396, appendix A, as fields of a policy.
func TestMergePatch(t *testing.T) {
	for _, c := range []struct{ target, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		doc := `{"policies":[{"name":"p","x":` + c.target + `}]}`
		out, err := policydoc.PatchPolicy([]byte(doc), policydoc.JSON, "p", []byte(`{"x":`+c.patch+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := policydoc.Policy(out, policydoc.JSON, "p", policydoc.JSON); err != nil || string(got) != `{"name":"p","x":`+c.want+"}\n" {
			t.Errorf("%s with %s: %s, %v; want %s", c.target, c.patch, got, err, c.want)
		}
	}
}
