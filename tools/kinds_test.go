package tools_test

import (
	"go/ast"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/policy"
)

// kindPage is a section of CONTRIBUTING.md that lists the files which a new kind changes.
type kindPage struct {
	title string
	// names reports whether an expression names a kind.
	names func(name string) bool
}

// CONTRIBUTING.md lists the files that a new dialect or identity source changes. No other code may
// name one, but for importers: it asks the kind's row.
func TestOnlyTheListedFilesNameADialectOrASource(t *testing.T) {
	headers := func(text string) bool {
		return dialect.FamilyOf([]byte(strings.ToLower(text))) != 0 && strings.Contains(text, "-")
	}
	for _, page := range []kindPage{
		{"A new header dialect", headers},
		{"A new identity source", identityConstants(t)},
	} {
		listed, naming := listedFiles(t, page.title), 0
		for _, name := range listFiles(t) {
			f := parse(t, name, read(t, name))
			if f.isTest() || f.isSupport() || strings.HasPrefix(name, "controlplane/internal/importer/") {
				continue
			}
			problems := namesKinds(f, page.names)
			if slices.Contains(listed, name) {
				naming += len(problems)
				continue
			}
			for _, problem := range problems {
				t.Errorf("%s: ask for a property, or list the file in CONTRIBUTING.md under %q", problem, page.title)
			}
		}
		if naming == 0 {
			t.Errorf("no listed file names one of %q: this test sees none", page.title)
		}
	}
}

// listedFiles are the files that a section of CONTRIBUTING.md names. All of them are there.
func listedFiles(t *testing.T, title string) (listed []string) {
	t.Helper()
	_, list, found := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## "+title+"\n")
	if !found {
		t.Fatalf("CONTRIBUTING.md has no section %q", title)
	}
	list, _, _ = strings.Cut(list, "\n## ")
	for _, m := range regexp.MustCompile("`([a-z][a-z/_]+/[a-z_-]+[.][a-z]+)`").FindAllStringSubmatch(list, -1) {
		read(t, m[1]) // It fails on a file that is not there.
		listed = append(listed, m[1])
	}
	return listed
}

// identityConstants finds the constants of sources that only find callers: header, jwt and
// metadata are for numbers too, and much code reads a header.
func identityConstants(t *testing.T) func(string) bool {
	var names []string
	f := parse(t, "shared/policy/source.go", read(t, "shared/policy/source.go"))
	for at, name := range append([]string{""}, algorithmConstants(f)...) {
		kind := policy.SourceKind(at)
		if _, is := policy.ParseIdentity(kind.String()); is && !kind.Is(policy.OfNumbers) {
			names = append(names, name, "Part"+strings.TrimPrefix(name, "Source"))
		}
	}
	if len(names) < 6 {
		t.Fatalf("the constants of sources are %v", names)
	}
	return func(name string) bool { return slices.Contains(names, name) }
}

// namesKinds finds names and texts that name a kind.
func namesKinds(f file, names func(string) bool) (problems []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		text := ""
		switch x := n.(type) {
		case *ast.Ident:
			text = x.Name
		case *ast.BasicLit:
			text, _ = strconv.Unquote(x.Value)
		}
		if text != "" && !strings.Contains(text, " ") && names(text) {
			problems = append(problems, f.problem(n.Pos(), text+" is named"))
		}
		return true
	})
	return problems
}
