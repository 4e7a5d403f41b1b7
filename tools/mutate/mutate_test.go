package main

import (
	"slices"
	"strings"
	"testing"
)

// Every change of a small function, by name and as the file that results.
func TestMutants(t *testing.T) {
	const source = `package p

func f(a, b int) int {
	if a < b && !ok {
		a += max(b, 1)
	}
	return g(a-1) + g(a-1), errors.New("x" + y)
}
`
	mutants, err := mutateFile("p/f.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range mutants {
		name, _ := strings.CutPrefix(m.String(), "p/f.go f: ")
		names = append(names, name)
		if strings.Count(string(m.source), "\n") != strings.Count(source, "\n") || string(m.source) == source {
			t.Errorf("%s gives\n%s", name, m.source)
		}
	}
	want := []string{
		"a < b && !ok => a < b || !ok", "a < b => a <= b", "a < b => a >= b", "!ok => ok",
		"a += max(b, 1) => a -= max(b, 1)",
		"max(b, 1) => b", "max(b, 1) => 1", "1 => 0", "g(a-1) + g(a-1) => g(a-1) - g(a-1)", "a-1 => a+1", "1 => 0 (2)",
		"a-1 => a+1 (2)",
		"1 => 0 (3)",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
	}
}

// A mutant that survives must be explained, and a mutant that is explained must survive.
func TestReport(t *testing.T) {
	known := mutant{file: "shared/quota/quota.go", function: "Take", before: "n <= 0", after: "n < 0"}
	other := mutant{file: "f.go", function: "f", before: "a", after: "b"}
	for _, c := range []struct {
		name    string
		mutants []mutant
		fates   []fate
		says    string
	}{
		{"all is well", []mutant{known, other, other}, []fate{survived, noticed, unbuilt}, ""},
		{"a gap", []mutant{other}, []fate{survived}, "no test notices: f.go f: a => b"},
		{"a wrong excuse", []mutant{known}, []fate{noticed},
			"changes nothing, but a test notices: shared/quota/quota.go Take"},
	} {
		err := reportFates(c.mutants, c.fates)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
