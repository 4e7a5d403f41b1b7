package promises_test

import (
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
)

// A method that is another one misspelt is named; words that are methods of their own are not.
func TestMisspeltMethodsAreNamed(t *testing.T) {
	for method, want := range map[string]string{
		"PSOT": "POST", "GTE": "GET", "DELET": "DELETE", "PATCHH": "PATCH",
		"OPTION": "OPTIONS", "PIT": "PUT", "GETT": "GET",
		"GET": "", "POST": "", "PURGE": "", "LIST": "", "COPY": "", "MOVE": "", "SUBSCRIBE": "", "QUERY": "", "G": "",
	} {
		set, err := policydoc.Load([]byte("version: weir/v1\npriorities:\n"+
			"  - {name: first, match: {methods: ["+method+"]}}\n  - {name: rest}\npolicies:\n"+
			"  - {name: a, match: {methods: ["+method+"]}, partition: [], limit: {quota: 9, window: 1m}}\n"),
			policydoc.YAML)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(promises.Of(set.Policies[0], set, 10, 0).Notes, "\n")
		ofClass := strings.Join(promises.NotesOf(set), "\n")
		said := "method " + method + ", which is not a common method: did you mean " + want + "?"
		for _, got := range []string{notes, ofClass} {
			if strings.Contains(got, "did you mean") != (want != "") || want != "" && !strings.Contains(got, said) {
				t.Errorf("%s: %s, want %q", method, got, want)
			}
		}
	}
}

// Each policy whose requests can lack a part, and then meet no limit at all, is named with its
// route. A policy with another policy behind it is not.
func TestRoutesThatAnAbsentPartLeavesOpenAreNamed(t *testing.T) {
	const head = "version: weir/v1\nidentity: {consumer: [{header: x-api-key}]}\npolicies:\n"
	limit := ", limit: {quota: 9, window: 1m}}\n"
	keyed := "  - {name: keyed, match: {paths: [/v1/**]}, partition: [consumer]" + limit
	behind := func(match string) string { return "  - {name: behind" + match + ", partition: [client_ip]" + limit }
	lacking := func(header string) string { return ", match: {headers: [{name: " + header + ", absent: true}]}" }
	share := func(policies string) string {
		return strings.ReplaceAll(policies, "], limit", "], enforcement: {enforce: 5}, limit")
	}
	const open = "unlimited without consumer: no other policy limits such requests to /v1/**"
	for name, c := range map[string]struct{ policies, want string }{
		"alone":                     {keyed, open},
		"one behind all":            {keyed + behind(""), ""},
		"one behind the same path":  {keyed + behind(", match: {paths: [/v1/**]}"), ""},
		"one behind a wider path":   {keyed + behind(", match: {paths: [/other, /**]}"), ""},
		"one behind a part of it":   {keyed + behind(", match: {paths: [/v1/items]}"), open},
		"one behind a method":       {keyed + behind(", match: {methods: [GET]}"), open},
		"one behind a host":         {keyed + behind(", match: {hosts: [a.example]}"), open},
		"one behind without a key":  {keyed + behind(lacking("x-api-key")), ""},
		"one behind another header": {keyed + behind(lacking("x-b")), open},
		"enforced for a share":      {share(keyed), open},
		"both for one share":        {share(keyed + behind("")), ""},
		"one behind for a share":    {keyed + behind(", enforcement: {enforce: 5}"), open},
		"enforced for none":         {strings.Replace(share(keyed), "5}", "0}", 1), ""},
		"one behind in shadow":      {keyed + behind(", enforcement: shadow"), open},
		"one behind that lacks it":  {keyed + "  - {name: behind, partition: [\"cookie:a\"]" + limit, open},
		"denied":                    {strings.Replace(keyed, "[consumer]", "[consumer], if_absent: deny", 1), ""},
		"shared":                    {strings.Replace(keyed, "[consumer]", "[consumer], if_absent: shared", 1), ""},
		"in shadow":                 {strings.Replace(keyed, "[consumer]", "[consumer], enforcement: shadow", 1), ""},
		"a part that all have":      {strings.Replace(keyed, "[consumer]", "[client_ip, method, host]", 1), ""},
		"a header that is asked for": {strings.NewReplacer("[consumer]", "[\"header:x-t\"]",
			"paths: [/v1/**]", "headers: [{name: x-t, present: true}]").Replace(keyed), ""},
		"a header": {strings.Replace(keyed, "[consumer]", "[\"header:x-t\", client_ip]", 1),
			"unlimited without header:x-t: no other policy limits such requests to /v1/**"},
		"a method and a host": {
			strings.Replace(keyed, "paths: [/v1/**]", "methods: [GET, POST], hosts: [a.example]", 1),
			"such requests to GET and POST of all paths at a.example",
		},
	} {
		set, err := policydoc.Load([]byte(head+c.policies), policydoc.YAML)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		notes := strings.Join(promises.Of(set.Policies[0], set, 10, 0).Notes, "\n")
		if c.want == "" && strings.Contains(notes, "unlimited without") || !strings.Contains(notes, c.want) {
			t.Errorf("%s: the notes are\n%s\nwant %q", name, notes, c.want)
		}
	}
	address, err := policydoc.Load([]byte(strings.Replace(head, "}]}", "}, client_ip]}", 1)+keyed), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(promises.Of(address.Policies[0], address, 10, 0).Notes, "\n")
	if strings.Contains(notes, "unlimited") {
		t.Errorf("with the address as the last source: %s", notes)
	}
}

// The example on the front page leaves no route without a limit.
func TestTheExampleOfREADMELeavesNoRouteOpen(t *testing.T) {
	page, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```yaml\n")
	text, _, ends := strings.Cut(rest, "```")
	if !found || !ends {
		t.Fatal("README.md has no policy set")
	}
	set, err := policydoc.Load([]byte(text), policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range set.Policies {
		if notes := strings.Join(promises.Of(p, set, 10, 0).Notes, "\n"); strings.Contains(notes, "unlimited without") {
			t.Errorf("%s: %s", p.Name, notes)
		}
	}
}
