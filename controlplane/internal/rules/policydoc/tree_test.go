package policydoc_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// A file of another product is bounded with its aliases written out, also where an alias stands
// inside its own anchor.
func TestTreesAreBounded(t *testing.T) {
	bounds := policydoc.Bounds{Bytes: 1000, Depth: 10, Values: 1000}
	laughs := "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n" +
		"c: [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]"
	for text, want := range map[string]string{
		"a: &a [*a]":               "line 1: lists and mappings nest deeper than 10 levels",
		"a: &a {b: *a}":            "line 1: lists and mappings nest deeper than 10 levels",
		laughs:                     "line 1: the document holds more than 1000 values",
		strings.Repeat("[", 12):    "is not YAML",
		strings.Repeat("# ", 501):  "the document is larger than 1000 bytes",
		"a: 1\n---\nb: [*unknown]": "line 3: is not YAML",
	} {
		if _, err := policydoc.Trees([]byte(text), bounds); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

// Merge keys bring the fields that a mapping does not have itself; the first merged mapping that
// has a field counts.
func TestTreesHaveMergedFields(t *testing.T) {
	text := "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz: {<<: [*x, *y], a: 3}\n---\n---\nb"
	roots, err := policydoc.Trees([]byte(text), policydoc.Bounds{Bytes: 1000, Depth: 10, Values: 1000})
	if err != nil || len(roots) < 2 {
		t.Fatal(roots, err)
	}
	got, err := policydoc.EncodeYAML(roots[0].Content[5])
	if want := "{a: 3, b: 1, c: 2}\n"; err != nil || string(got) != want {
		t.Errorf("%s, want %s: %v", got, want, err)
	}
}
