package policydoc_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

const platform = `version: weir/v1
# Who a caller is, for all teams.
identity:
  consumer: [{header: x-api-key}, client_ip]
policies:
  - {name: everyone, partition: [consumer], limit: {quota: 1000, window: 1m}, mode: leased}
`

func yamlPart(name, text string) policydoc.Part {
	return policydoc.Part{Name: name, Text: []byte(text), Format: policydoc.YAML}
}

func TestFilesOfTeamsMakeOneSet(t *testing.T) {
	parts := []policydoc.Part{
		yamlPart("00-platform.yaml", platform),
		yamlPart("payments.yaml", `version: weir/v1
policies:
  # Charges are dear.
  - name: charges
    match: {paths: [/v1/charges]} # not their listing
    partition: [consumer]
    limit: {quota: 10, window: 1s}
    mode: strict
  - {name: refunds, partition: [consumer], limit: {quota: 1, window: 1s}, mode: strict}
`),
		{Name: "search.json", Format: policydoc.JSON, Text: []byte(`{"version": "weir/v1", "policies":
			[{"name": "search", "partition": ["consumer"], "limit": {"quota": 5, "window": "1s"}, "mode": "local"}]}`)},
		yamlPart("nothing-yet.yaml", "version: weir/v1\npolicies: []\n"),
	}
	doc, err := policydoc.Join(parts, policydoc.Load)
	if err != nil {
		t.Fatal(err)
	}
	set, err := policydoc.Load(doc, policydoc.YAML)
	if err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	var names []string
	for _, p := range set.Policies {
		names = append(names, p.Name)
	}
	if got, want := strings.Join(names, " "), "everyone charges refunds search"; got != want {
		t.Errorf("policies %s, want %s", got, want)
	}
	for _, kept := range []string{
		"# 00-platform.yaml\n", "# payments.yaml\n", "# search.json\n",
		"# Who a caller is, for all teams.", "# Charges are dear.", "# not their listing",
	} {
		if !strings.Contains(string(doc), kept) {
			t.Errorf("no %q in\n%s", kept, doc)
		}
	}
	again, err := policydoc.Join(parts, policydoc.Load)
	if err != nil || string(again) != string(doc) {
		t.Errorf("the same files make another document: %v", err)
	}
}

func TestProblemsNameFileAndLine(t *testing.T) {
	for name, c := range map[string]struct {
		second string
		want   []string
	}{
		"a name of another team": {"version: weir/v1\npolicies:\n" +
			"  - {name: everyone, partition: [consumer], limit: {quota: 1, window: 1s}, mode: local}\n",
			[]string{`b.yaml:3: the policy "everyone" stands in a.yaml:6 already: names are unique over all files`}},
		"a field of another team": {"version: weir/v1\nidentity: {consumer: [client_ip]}\npolicies: []\n",
			[]string{"b.yaml:2: identity stands in a.yaml:3 already: it can stand in one place only"}},
		"a mistake in a policy": {"version: weir/v1\npolicies:\n" +
			"  - {name: x, partition: [consumer], limit: {quota: 1, window: 1s}, mode: local}\n" +
			"  - {name: y, partition: [consumer], limit: {quota: -1, window: 1s}, mode: local}\n",
			[]string{`b.yaml:4: policy "y": limit.quota: `}},
		"a mistake elsewhere": {"version: weir/v1\nheaders: {standard: draft-3}\n",
			[]string{"b.yaml:2: headers.standard: "}},
		"no YAML":         {"version: weir/v1\npolicies: [\n", []string{"b.yaml:"}},
		"an empty file":   {"", []string{"b.yaml: the document is empty"}},
		"no version":      {"policies: []\n", []string{"b.yaml: has no version: begin it with version: weir/v1"}},
		"another version": {"version: weir/v2\npolicies: []\n", []string{"b.yaml:1: version must be weir/v1"}},
		"a list":          {"- a\n", []string{"b.yaml:1: is a list: a policy set is a mapping"}},
		"a field of a ConfigMap": {"version: weir/v1\napiVersion: v1\n",
			[]string{"b.yaml:2: apiVersion: "}},
		"policies that are no list": {"version: weir/v1\npolicies: {name: x}\n",
			[]string{"b.yaml:2: policies must be a list"}},
		"policies that are nothing": {"version: weir/v1\npolicies:\n", []string{"b.yaml:2: policies must be a list"}},
		"two lists":                 {"version: weir/v1\npolicies: []\n\"policies\": []\n", []string{"b.yaml:"}},
	} {
		_, err := policydoc.Join(
			[]policydoc.Part{yamlPart("a.yaml", platform), yamlPart("b.yaml", c.second)}, policydoc.Load)
		var problems policy.Problems
		if !errors.As(err, &problems) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(problems) != len(c.want) {
			t.Errorf("%s: %d problems, want %d:\n%v", name, len(problems), len(c.want), err)
			continue
		}
		for i, want := range c.want {
			if got := policydoc.Sentence("", problems[i]); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q does not begin with %q", name, got, want)
			}
		}
	}
}

func FuzzJoin(f *testing.F) {
	f.Add([]byte(platform), []byte("version: weir/v1\npolicies: []\n"))
	f.Add([]byte("version: weir/v1\nx: &a [1]\npolicies: *a\n"), []byte("? {a: b}\n: c\n"))
	f.Add([]byte("{}"), []byte("version: weir/v1\npolicies:\n- &p {name: a}\n- *p\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		doc, err := policydoc.Join(
			[]policydoc.Part{yamlPart("a.yaml", string(a)), yamlPart("b.yaml", string(b))}, policydoc.Load)
		if err != nil {
			return
		}
		if _, err := policydoc.Load(doc, policydoc.YAML); err != nil {
			t.Errorf("%v in %q", err, doc)
		}
	})
}
