package policydoc_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// sentences are all problems of a document as weir check prints them.
func sentences(t *testing.T, doc string) string {
	t.Helper()
	_, err := policydoc.LoadNew([]byte(doc), policydoc.FormatOf("", []byte(doc)))
	problems, ok := policydoc.ProblemsOf(err)
	if !ok {
		t.Fatalf("%q: %v, want problems", doc, err)
	}
	var out []string
	for _, p := range problems {
		out = append(out, policydoc.Sentence("f", p))
	}
	return strings.Join(out, "\n")
}

const head = "version: weir/v1\npolicies:\n  - name: api\n    partition: [client_ip]\n"

// Each mistake is named with its line, whatever stands around it.
func TestMistakesHaveTheirLine(t *testing.T) {
	const tail = "  - name: next\n    partition: []\n    limit: {quota: 1, window: 1m}\n"
	for _, c := range []struct{ bad, want string }{
		{"   limit: {quota: 1, window: 1m}\n",
			"f:5: is not YAML: the line is indented by 3 blanks"},
		{"      limit: {quota: 1, window: 1m}\n",
			`f:5: is not YAML: the line is indented deeper than the one above it, ` +
				`"partition: [client_ip]"`},
		{"    limit:\n      quota: 1\n     window: 1m\n",
			"f:7: is not YAML: the line is indented by 5 blanks"},
		{"\tlimit: {quota: 1, window: 1m}\n",
			"f:5: is not YAML: the line begins with a tab"},
		{"    limit: {quota: 1, window: 1m\n",
			"f:5: is not YAML: a bracket is opened here"},
		{"    limit: {quota: ${Q}, window: 1m}\n",
			"f:5: is not YAML: ${ } is a variable"},
		{"    match: {hosts: [*.example.com]}\n",
			"f:5: is not YAML: a text that begins with * or & needs quotes"},
		{"    match: {hosts: [*all]}\n",
			"f:5: is not YAML: a text that begins with * needs quotes, as in '*all'"},
		{"    match: {hosts: [@a]}\n",
			"f:5: is not YAML: a text that begins with @ needs quotes"},
		{"    description: one: two\n",
			"f:5: is not YAML: a text with a colon and a blank in it needs quotes"},
		{"    limit:\n      quota:1\n      window: 1m\n",
			"f:6: is not YAML: a blank is missing after the colon, as in quota: 1"},
		{"    limit: {quota: 1_000, window: 1m}\n",
			`f:5: policy "api": limit.quota: "1_000" is no number`},
		{"    limit: {quota: '10', window: 1m}\n",
			`f:5: policy "api": limit.quota: must be a whole number, not a string: take`},
		{"    limit: {quota: 10, window: 60}\n",
			`did you mean 60s?`},
		{"    limit: {quota: {{ .Values.q }}, window: 1m}\n",
			`f:5: policy "api": limit.quota: {{ }} is a place of a template`},
		{"    limit: {quota: 1, window: 1m}\n    limit: {quota: 2, window: 1m}\n",
			`f:6: policy "api": limit: is given twice`},
		{"    limit: {quota: 1, window: 1m}\n    mode: stricct\n",
			"did you mean strict?"},
		{"    limit: {quota: 1, window: 1m}\n    match: {path_case: any}\n",
			`f:6: policy "api": match.path_case: unknown field: it stands in the match beside policies`},
		{"    limit: {quota: 1, window: 1m}\n    paths: [/a]\n",
			`f:6: policy "api": paths: unknown field: it stands in match, and in exempt beside policies`},
		{"    limit: {quota: 1, window: 1m}\n    hosts: [a.b]\n",
			`f:6: policy "api": hosts: unknown field: it stands in match`},
		{"    limit: {quota: 1, window: 1m}\n    client_ips: [10.0.0.0/8]\n",
			`f:6: policy "api": client_ips: unknown field: it stands in match, and in exempt and banned beside policies`},
		{"    limit: {quota: 1, window: 1m}\n    exempt: {}\n",
			`f:6: policy "api": exempt: unknown field: it stands beside policies`},
		{"    limit: {quota: 1}\n    window: 1m\n",
			`f:6: policy "api": window: unknown field: it stands in limit`},
		{"    limit: {quota: 1, window: 1m}\n    match: {paths: [/x/*]}\n",
			`write {name} for one segment, or /** for all below`},
		{"    limit: {quota: 1, window: 1m}\n    match: {paths: []}\n",
			`f:6: policy "api": match.paths: is an empty list, which lets every request match`},
		{"    limit: {quota: 1, window: 1m}\n    match:\n      methods: [GET]\n      client_ips: []\n",
			`f:8: policy "api": match.client_ips: is an empty list`},
		{"=======\n    limit: {quota: 1, window: 1m}\n",
			"f:5: is not YAML: a merge has left its mark here"},
		{"||||||| base\n    limit: {quota: 1, window: 1m}\n",
			"f:5: is not YAML: a merge has left its mark here"},
	} {
		// Blank lines and comments below must not move it, nor policies behind it.
		for _, more := range []string{"", "\n\n# more\n\n", tail, "\n# more\n" + tail} {
			if got := sentences(t, head+c.bad+more); !strings.Contains(got, c.want) {
				t.Errorf("%q before %q:\n%s\nwant %s", c.bad, more, got, c.want)
			}
		}
	}
}

// Mistakes in the responses of the set are shown by their lines, and a misspelt reason is guessed.
func TestMistakesInResponses(t *testing.T) {
	const head = "version: weir/v1\nresponses:\n  quota: {body: slow}\n"
	const unknown, status = "unknown field: did you mean ", "must be a whole number from 400 to 599, not 200"
	const answered = "refusals for this reason are answered by "
	for bad, want := range map[string]string{
		"  penality: {body: a}\n":   "f:4: responses.penality: " + unknown + "penalty?",
		"  quotas: {body: a}\n":     unknown + "quota?",
		"  ban:\n    status: 200\n": "f:5: responses.ban.status: " + status,
		"  ban:\n    headers:\n      Content-Type: text/html\n": "f:6: responses.ban.headers." +
			"Content-Type: is not yours to set",
		"  ban: {headers: [x-a]}\n": "f:4: responses.ban.headers: must be a mapping of headers, not a list",
		"policies:\n  - {name: a, partition: [], limit: {quota: 1, window: 1m}, responses: {body: a}}\n": "" +
			`policy "a": responses: unknown field: it stands beside policies, for the whole set`,
		"  banned: {body: a}\n":    unknown + "ban?",
		"  shed: {body: a}\n":      "responses.shed: unknown field: " + answered + "overload",
		"  in_flight: {body: a}\n": "responses.in_flight: unknown field: " + answered + "quota",
		"  several: {body: a}\n":   "responses.several: unknown field: " + answered + "absent",
		"  ban: {body: 'in {retry_afer}, {policies}'}\n": "responses.ban.body: has the field retry_afer: there " +
			"are policy, limit, window, retry_after and reset: did you mean retry_after?",
		"policies:\n  - {name: a, partition: [], limit: {quota: 1, window: 1m}, response: {headers: {a: b}}}\n": "" +
			`policy "a": response.headers: unknown field: a policy's own response has no headers; a response in ` +
			"responses, beside policies, may have headers",
	} {
		if got := sentences(t, head+bad); !strings.Contains(got, want) {
			t.Errorf("%q:\n%s\nwant %s", bad, got, want)
		}
	}
}

// Guesses are of the names alone that there are, and of both readings of a number.
func TestGuesses(t *testing.T) {
	const limited = "policies:\n  - {name: a, partition: [], limit: {quota: %s, window: 1m}}\n"
	for doc, want := range map[string]string{
		"tiers: [free, pro]\nidentity: {tier: [assignment], default_tier: fre}\npolicies: []\n": "did you mean free?",
		fmt.Sprintf(limited, "020"):  "as in 20, or 16 if it was meant as octal",
		fmt.Sprintf(limited, "0x10"): "as in 16, or in quotes",
	} {
		if got := sentences(t, "version: weir/v1\n"+doc); !strings.Contains(got, want) {
			t.Errorf("%s\n%s\nwant %s", doc, got, want)
		}
	}
}

// Words of other programs are known by their meaning, not by their letters.
func TestWordsOfOtherPrograms(t *testing.T) {
	for line, want := range map[string]string{
		"mode: global":                  "not global: did you mean leased?",
		"mode: strct":                   "not strct: did you mean strict?",
		"enforcement: on":               "not on: did you mean enforce?",
		"enforcement: 25%":              "not 25%: did you mean {enforce: 25}?",
		"partition: [ip]":               "not ip: did you mean client_ip?",
		"partition: [client-ip]":        "not client-ip: did you mean client_ip?",
		"partition: [X-Api-Key]":        "did you mean header:x-api-key?",
		"limit: {quota: 1, window: 2w}": "not 2w: did you mean 14d?",
		"limit: {rate: 5, per: 1m}":     "limit.rate: unknown field: did you mean quota?",
		"limit: [{quota: 1, window: 1m}, {quota: 5, per: 1h}]": "per: unknown field: did you mean window?",
	} {
		got := sentences(t, "version: weir/v1\npolicies:\n  - name: a\n    "+line+"\n")
		if !strings.Contains(got, want) {
			t.Errorf("%s\n%s\nwant %s", line, got, want)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	got := sentences(t, head+`    limit: {quota: 1_000, window: 60}
    modde: strict
  - partition: !!set [client_ipp]
    limit: {quota: 0x10, window: 1m}
polices: []
`)
	want := `f:5: policy "api": limit.quota: "1_000" is no number that this language has: write it in decimal, ` +
		`as in 1000, or in quotes if it is a text
f:5: policy "api": limit.window: must be a length of time like 30s (units ms s m h d), not 60: did you mean 60s?
f:6: policy "api": modde: unknown field: did you mean mode?
f:7: policies[1].partition: tags like !!set are not part of the policy language: leave it out
f:7: policies[1].name: is missing
f:8: policies[1].limit.quota: "0x10" is no number that this language has: write it in decimal, as in 16, ` +
		`or in quotes if it is a text
f:9: polices: unknown field: did you mean policies?`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// If the reader of JSON stops at a mistake, the error names the intended form.
func TestBrokenJSON(t *testing.T) {
	for doc, want := range map[string]string{
		`{"a" "b"}`: "a colon is missing", `{"a"= 1}`: "a colon is missing",
		`{"a": "b" "c": 1}`:             "a comma is missing",
		`["a" "b"]`:                     "a comma is missing",
		`[1 2]`:                         "a comma is missing",
		"{\"a\": 1\n\"b\": 2}":          "a comma is missing",
		`{"name": login}`:               "a text needs double quotes",
		`{name: 1}`:                     "the name of a field needs double quotes",
		`{"a": 1, b": 2}`:               "the name of a field needs double quotes",
		`{"name": "login, "mode": "x"}`: "a quote is missing before",
		`["a, "b"]`:                     "a quote is missing before",
		`{"a: 1, "b": 2}`:               "a quote is missing before",
		"{\"a\": \"x\n}":                "the text has no closing quote in its line",
		`{"a": True}`:                   "write true in small letters",
		`{"a": FALSE}`:                  "write false in small letters",
		`{"a": None}`:                   "None is no value: leave the field out",
		`{"a": ${X}}`:                   "${ } is a variable",
		`{"a": {{ .x }}}`:               "{{ }} is a place of a template",
		`{"a": 1, "b": 2,}`:             "is one too many",
		`{"a": 1,, "b": 2}`:             "the comma is one too many",
		`{"a": 010}`:                    "a number begins with no 0",
		`{"a": .5}`:                     "write 0 before the point",
		`{"a": nulls}`:                  `a text needs double quotes: "nulls"`,
		`{"a": tru}`:                    `a text needs double quotes: "tru"`,
		`{"a": [falsey]}`:               `a text needs double quotes: "falsey"`,
		`{"a": 10s}`:                    `a text needs double quotes: "10s"`,
		`{"a": "b"c}`:                   "a quote is missing before c",
		"\ufeff{\"a\": 1}":              "begins with a byte order mark",
		"über: 1":                       "it begins with ü and not with {",
	} {
		_, err := policydoc.LoadNew([]byte(doc), policydoc.JSON)
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("%s\n%s\nwant %s", doc, got, want)
		}
	}
}

// A file that is something else is named as such, in one line.
func TestSomethingElse(t *testing.T) {
	for doc, want := range map[string]string{
		"\x1f\x8b\x08\x00":                              "f:1: is compressed with gzip",
		"abc\x00def":                                    "f:1: is a binary file",
		"\xff\xfev\x00":                                 "f:1: is in UTF-16",
		"<!DOCTYPE html>\n<html></html>\n":              "f:1: is a page of HTML or XML",
		"<<<<<<< HEAD\nversion: weir/v1\n":              "f:1: is not YAML: a merge has left",
		"-----BEGIN CERTIFICATE-----\nx\n":              "f:1: is a certificate or a key",
		"apiVersion: v1\nkind: ConfigMap\ndata: {a: b}": "f:1: is a manifest of Kubernetes (ConfigMap)",
		"apiVersion: v1\nkind: Service\n":               "f:1: is a manifest of Kubernetes (Service)",
		"static_resources: {}\n":                        "f:1: is a configuration of Envoy",
		"domain: a\ndescriptors: []\n":                  "f:1: is a configuration of envoyproxy/ratelimit",
		"_format_version: '3.0'\n":                      "f:1: is a configuration of Kong",
		"name: a\npartition: []\n":                      "f:1: is one policy",
		"- name: a\n":                                   "f:1: is a list",
		"hello\n":                                       "f:1: is a single text",
		"":                                              "f: the document is empty",
		"# nothing\n":                                   "f: the document is empty",
	} {
		if got := sentences(t, doc); !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%q: %s, want %s", doc, got, want)
		}
	}
}

// Whatever a document has become: a line that is named exists, and large ones are answered soon.
func TestDamagedDocuments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	whole := []byte(head + "    limit: {quota: 10, window: 1m}\n    match: {paths: ['/a/**'], hosts: [\"*.b.c\"]}\n" +
		"  - name: b # text\n    partition:\n      - header:x\n    limit:\n      quota: 5\n      window: 1h\n")
	for range 3000 {
		doc := bytes.Clone(whole)
		for range 1 + r.IntN(3) {
			at := r.IntN(len(doc))
			doc[at] = "\t :-[]{}'\"*&#\n%@x"[r.IntN(17)]
		}
		_, err := policydoc.Load(doc, policydoc.YAML)
		problems, _ := policydoc.ProblemsOf(err)
		for _, p := range problems {
			if lines := 1 + bytes.Count(doc, []byte("\n")); p.Line < 0 || p.Line > lines || p.Reason == "" {
				t.Fatalf("%q: %+v with %d lines", doc, p, lines)
			}
		}
	}
}
