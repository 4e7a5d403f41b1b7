package policydoc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

func str(text string) policy.Node { return policy.Node{Kind: policy.String, Text: text} }
func num(text string) policy.Node { return policy.Node{Kind: policy.Number, Text: text} }

func TestParseYAML(t *testing.T) {
	for text, want := range map[string]policy.Node{
		"a": str("a"), "'1'": str("1"), "off": str("off"), "yes": str("yes"), "2026-01-02": str("2026-01-02"), "1m": str("1m"), `""`: str(""),
		"12": num("12"), "-0.5e3": num("-0.5e3"),
		"true": {Kind: policy.Bool, Text: "true"}, "FALSE": {Kind: policy.Bool, Text: "false"},
		"~": {}, "null": {},
		"[a, 1]":   {Kind: policy.List, Items: []policy.Node{str("a"), num("1")}},
		"- a\n- 1": {Kind: policy.List, Items: []policy.Node{str("a"), num("1")}},
		"{}":       {Kind: policy.Map},
		// Repeated: for the language to refuse.
		"a: b\na:": {Kind: policy.Map, Keys: []string{"a", "a"}, Items: []policy.Node{str("b"), {}}},
		"1: x":     {Kind: policy.Map, Keys: []string{"1"}, Items: []policy.Node{str("x")}},
		"x: &a [1]\ny: *a # twice": {Kind: policy.Map, Keys: []string{"x", "y"}, Items: []policy.Node{
			{Kind: policy.List, Items: []policy.Node{num("1")}}, {Kind: policy.List, Items: []policy.Node{num("1")}}}},
	} {
		got, err := policydoc.Parse([]byte(text), policydoc.YAML)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseJSON(t *testing.T) {
	got, err := policydoc.Parse([]byte("{\"a\": [1, \"x\\u0041\", true, null, {}], \"a\": -1.5e2}\n"), policydoc.JSON)
	want := policy.Node{Kind: policy.Map, Keys: []string{"a", "a"}, Items: []policy.Node{
		{Kind: policy.List, Items: []policy.Node{num("1"), str("xA"), {Kind: policy.Bool, Text: "true"}, {},
			{Kind: policy.Map}}}, num("-1.5e2")}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat("[", policydoc.MaxDepth+2) + strings.Repeat("]", policydoc.MaxDepth+2)
	bomb := "a0: &a0 [x]\n"
	for i := 1; i < 10; i++ {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i, i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	many := "[" + strings.TrimSuffix(strings.Repeat("1,", policydoc.MaxValues+1), ",") + "]"
	for _, c := range []struct {
		format policydoc.Format
		text   string
		want   string
	}{
		{policydoc.YAML, "", "the document is empty"},
		{policydoc.YAML, "# nothing\n", "the document is empty"},
		{policydoc.YAML, "a: 1\n---\nb: 2\n", "a second document starts here"},
		{policydoc.YAML, "a: 1\n---\n", "a second document starts here"},
		{policydoc.YAML, "a:\n  b: !secret x\n", "line 2: tags like !secret are not part"},
		{policydoc.YAML, "a: !!str 1", "line 1: tags like !!str are not part"},
		{policydoc.YAML, "!!str a: 1", "line 1: tags like !!str are not part"},
		{policydoc.YAML, "b: &b {x: 1}\nc:\n  <<: *b\n", "line 3: merge keys (<<) are not part"},
		{policydoc.YAML, "? [a, b]\n: 1\n", "line 1: the key of a mapping must be a plain name"},
		{policydoc.YAML, "~: 1", "line 1: the key of a mapping must be a plain name"},
		{policydoc.YAML, "a: 1\nb: 0x1f\n", `line 2: "0x1f" is no number that this language has`},
		{policydoc.YAML, "010", "is no number that this language has"},
		{policydoc.YAML, "1_000", "is no number that this language has"},
		{policydoc.YAML, ".inf", "is no number that this language has"},
		{policydoc.YAML, "a: [1", "is not YAML: "},
		{policydoc.YAML, "a: *nobody", "line 1: is not YAML: a text that begins with * needs quotes, as in '*nobody'"},
		{policydoc.YAML, "a: 1\nb: \xff\n", "line 2: is not UTF-8"},
		{policydoc.YAML, "&a [*a]", "nest deeper than 32"},
		{policydoc.YAML, deep, "nest deeper than 32"},
		{policydoc.YAML, bomb, "more than 250000 values, aliases included"},
		{policydoc.YAML, many, "more than 250000 values"},
		{policydoc.YAML, strings.Repeat(" ", policydoc.MaxBytes+1), "larger than 1048576 bytes"},
		{policydoc.JSON, "", "line 1: is not JSON: ends too early"},
		{policydoc.JSON, "{\n\"a\": 1,\n}", "line 3: is not JSON: "},
		{policydoc.JSON, "{} {}", "something after the document"},
		{policydoc.JSON, "{} ]", "is not JSON"},
		{policydoc.JSON, "{\"a\": [1", "is not JSON"},
		{policydoc.JSON, "a: 1", "is not JSON"},
		{policydoc.JSON, deep, "nest deeper than 32"},
		{policydoc.JSON, many, "more than 250000 values"},
	} {
		_, err := policydoc.Parse([]byte(c.text), c.format)
		var syntax *policydoc.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.60q: %v, want %q", c.format, c.text, err, c.want)
		}
	}
}

func TestSniff(t *testing.T) {
	for text, want := range map[string]policydoc.Format{
		` {"a": 1} `: policydoc.JSON, "{a: 1}": policydoc.YAML, "a: 1": policydoc.YAML, "": policydoc.YAML, "1": policydoc.YAML,
	} {
		if got := policydoc.Sniff([]byte(text)); got != want {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}

// The documents that the project ships mean the same in YAML and in JSON.
func TestToJSONKeepsTheMeaning(t *testing.T) {
	files, err := filepath.Glob("../../../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		node, err := policydoc.Parse(doc, policydoc.YAML)
		if err != nil {
			t.Fatal(err)
		}
		again, err := policydoc.Parse(policydoc.ToJSON(node), policydoc.JSON)
		if err != nil || !reflect.DeepEqual(again, node) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Whatever the bytes: no panic, and the set that was read survives being written as JSON. Values
// behind unknown keys are left out of the policy set, and count all the same: an alias in its own
// anchor, or many in many, would be unfolded without end.
func TestValuesThatAreLeftOutAreBounded(t *testing.T) {
	nested := "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 7 {
		alias := fmt.Sprintf("*a%d, ", i)
		nested += fmt.Sprintf("  a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(alias, 10), ", "))
	}
	for _, c := range []struct{ doc, want string }{
		{"<<: &a [*a]\n", "deeper than"},
		{"? &a [*a]\n: x\n", "deeper than"},
		{"? {b: &a [*a]}\n: x\n", "deeper than"},
		{"null: &a {b: *a}\n", "deeper than"},
		{"<<:\n" + nested, "values, aliases included"},
		{"<<: [1]\n", "merge keys"},
	} {
		_, err := policydoc.Load([]byte("version: weir/v1\npolicies: []\n"+c.doc), policydoc.YAML)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.doc, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "a: 1", "{\"a\": [1, null]}", "&a [*a]", "a: &x {b: *x}", "- - - 1", "? a\n: b",
		"<<: 1", "<<: &a [*a]",
		"? &a [*a]\n: 1", "a: &a 1\n*a : 1", "a: !t 1", "%YAML 1.1\n---\na", "a: |\n  b\n", "\xef\xbb\xbfa: 1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, format := range []policydoc.Format{policydoc.YAML, policydoc.JSON} {
			_, _ = policydoc.Load(doc, format)
			node, err := policydoc.Parse(doc, format)
			if err != nil {
				continue
			}
			again, err := policydoc.Parse(policydoc.ToJSON(node), policydoc.JSON)
			if err != nil {
				t.Fatalf("%q became %q: %v", doc, policydoc.ToJSON(node), err)
			}
			if !reflect.DeepEqual(again, node) {
				t.Fatalf("%q became %q", doc, policydoc.ToJSON(node))
			}
		}
	})
}

// The example of the documentation uses most of the language.
func TestTheExample(t *testing.T) {
	text, err := os.ReadFile("../../../../examples/url-shortener.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set, err := policydoc.Load(text, policydoc.YAML)
	if err != nil {
		t.Fatal(err)
	}
	if p := set.Policies[2]; len(p.LimitsOf(1)) != 1 || p.LimitsOf(1)[0].Quota != 10_000 || len(p.LimitsOf(2)) != 0 {
		t.Errorf("limits by tier: %+v", p)
	}
}
