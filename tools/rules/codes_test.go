package rules_test

import (
	"regexp"
	"strings"
	"testing"
)

// CONTRIBUTING.md lists where a new problem code goes. Each code stands in the listed tables, and
// nothing else makes one of a text, so that a code without a status cannot be answered.
func TestEachProblemCodeIsInItsTables(t *testing.T) {
	_, list, found := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## A new problem code\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no section on a new problem code")
	}
	list, _, _ = strings.Cut(list, "\n## ")
	const codes, answers = "controlplane/internal/ground/errs/errs.go", "controlplane/internal/serve/api/problem.go"
	for _, name := range []string{codes, answers, "api/openapi.yaml"} {
		if !strings.Contains(list, "`"+name+"`") {
			t.Errorf("the section does not name %s", name)
		}
	}
	table := read(t, answers)
	named := regexp.MustCompile(`\t([A-Z]\w+) +Code = "([a-z-]+)"`).FindAllStringSubmatch(read(t, codes), -1)
	if len(named) < 20 {
		t.Fatalf("%s has only %d codes", codes, len(named))
	}
	words := map[string]bool{}
	for _, m := range named {
		words[m[2]] = true
		if !strings.Contains(table, "\terrs."+m[1]+": ") {
			t.Errorf("%s has no answer for errs.%s", answers, m[1])
		}
	}
	shown := regexp.MustCompile(`urn:weir:problem:([a-z-]+)`)
	for _, m := range shown.FindAllStringSubmatch(read(t, "api/openapi.yaml"), -1) {
		if !words[m[1]] {
			t.Errorf("api/openapi.yaml has the problem %s, which %s has not", m[1], codes)
		}
	}
	made := regexp.MustCompile(`errs\.(New|Code)\("|\b[Cc]ode: +"`)
	looked := 0
	for _, f := range goFiles(t) {
		if f.isTest() || f.isSupport() || !strings.Contains(f.source, `/errs"`) {
			continue
		}
		looked++
		if at := made.FindString(f.source); at != "" {
			t.Errorf("%s: %s makes a code of a text: name one of errs", f.path, at)
		}
	}
	if looked < 20 {
		t.Errorf("only %d files import errs", looked)
	}
}
