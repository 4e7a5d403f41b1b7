package rules_test

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// kindPage is a section of CONTRIBUTING.md that lists the files which a new kind changes.
type kindPage struct {
	title string
	// find returns the places of a file that name a kind.
	find func(f file) []string
}

// CONTRIBUTING.md lists the files that a new algorithm, dialect, identity source or topic changes.
// No other code may name a kind: it asks a property of the kind's row. Only importers name kinds
// for another reason: they choose a kind for a limit.
func TestOnlyTheListedFilesNameAKind(t *testing.T) {
	headers := func(text string) bool {
		return dialect.FamilyOf([]byte(strings.ToLower(text))) != 0 && strings.Contains(text, "-")
	}
	sources, topics := identityConstants(t), topicVariables(t)
	algorithms := algorithmConstants(t)
	for _, page := range []kindPage{
		{"A new algorithm", func(f file) []string { return namesAlgorithms(f, algorithms) }},
		{"A new header dialect", func(f file) []string { return namesKinds(f, headers) }},
		{"A new identity source", func(f file) []string { return namesKinds(f, sources) }},
		{"A new topic", func(f file) []string { return namesTopics(f, topics) }},
	} {
		listed, naming := listedFiles(t, page.title), 0
		for _, f := range goFiles(t) {
			if f.isTest() || f.isSupport() || strings.HasPrefix(f.path, "controlplane/internal/offline/importer/") {
				continue
			}
			problems := page.find(f)
			if slices.Contains(listed, f.path) {
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

// listedFiles returns the files that a section of CONTRIBUTING.md names. All of them are there.
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
	for at, name := range append([]string{""}, listedConstants(f)...) {
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

// topicVariables finds the variables of topics.
func topicVariables(t *testing.T) (names []string) {
	const name = "controlplane/internal/ground/docs/records.go"
	f := parse(t, name, read(t, name))
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is && len(spec.Values) == 1 {
			if row, is := spec.Values[0].(*ast.CompositeLit); is && isIdent(row.Type, "Topic") {
				names = append(names, spec.Names[0].Name)
			}
		}
		return true
	})
	if len(names) < 2 {
		t.Fatalf("the variables of topics are %v", names)
	}
	return names
}

func isIdent(e ast.Expr, name string) bool {
	id, is := e.(*ast.Ident)
	return is && id.Name == name
}

// namesTopics finds expressions that name a topic.
func namesTopics(f file, variables []string) (problems []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		x, is := n.(*ast.SelectorExpr)
		if is && isIdent(x.X, "docs") && slices.Contains(variables, x.Sel.Name) {
			problems = append(problems, f.problem(n.Pos(), "docs."+x.Sel.Name+" is named"))
		}
		return true
	})
	return problems
}

// The page on a new store says the purpose of each port.
func TestThePageOnANewStoreHasAllPorts(t *testing.T) {
	_, page, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## A new store\n")
	page, _, _ = strings.Cut(page, "\n## ")
	f := parse(t, "controlplane/internal/store/store.go", read(t, "controlplane/internal/store/store.go"))
	ports := map[string]bool{}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if x, is := n.(*ast.SelectorExpr); is {
			ports[x.X.(*ast.Ident).Name+"."+x.Sel.Name] = true
		}
		return true
	})
	for _, m := range regexp.MustCompile("(?m)^[|] `([a-z]+[.][A-Z][a-z]+)` [|]").FindAllStringSubmatch(page, -1) {
		if !ports[m[1]] {
			t.Errorf("CONTRIBUTING.md has the port %s, which is none of store.Store", m[1])
		}
		delete(ports, m[1])
	}
	for port := range ports {
		t.Errorf("CONTRIBUTING.md does not have the port %s of store.Store", port)
	}
}

// Each algorithm, dialect and identity source is in the description of the policy language and, as
// code, on a page of docs that people write. A window algorithm has vectors.
func TestEachKindIsOnItsPages(t *testing.T) {
	var pages strings.Builder
	for _, name := range markdown(t) {
		if strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/reference/") {
			pages.WriteString(read(t, name))
		}
	}
	enums := strings.Join(regexp.MustCompile(`enum: \[[^]]*\]`).FindAllString(read(t, "api/openapi.yaml"), -1), "\n")
	want := func(kind, name, described string) {
		word := `\b` + regexp.QuoteMeta(name) + `\b`
		if !regexp.MustCompile(word).MatchString(described) {
			t.Errorf("api/openapi.yaml does not have the %s %s", kind, name)
		}
		if !regexp.MustCompile("`[^`\n]*" + word + "[^`\n]*`").MatchString(pages.String()) {
			t.Errorf("no page of docs has the %s `%s`", kind, name)
		}
	}
	vectors := read(t, "shared/quota/quotatest/windows.txt")
	for a := range quota.Algorithm(quota.AlgorithmCount) {
		want("algorithm", a.String(), enums)
		if a.Windowed() && !strings.Contains(vectors, " "+a.String()+" quota=") {
			t.Errorf("shared/quota/quotatest/windows.txt has no vector of %s", a)
		}
	}
	for _, row := range slices.Concat(dialect.Legacies[:], dialect.Standards[:]) {
		want("dialect", row.Name, enums)
	}
	for kind := range policy.SourceKind(policy.SourceCount) {
		if kind > 0 {
			want("source", kind.String(), read(t, "api/openapi.yaml"))
		}
	}
}

// algorithmConstants returns the constants of all algorithms.
func algorithmConstants(t *testing.T) []string {
	t.Helper()
	const name = "shared/quota/algorithm.go"
	constants := listedConstants(parse(t, name, read(t, name)))
	if len(constants) != quota.AlgorithmCount {
		t.Fatalf("%s has the constants %v, and %d algorithms", name, constants, quota.AlgorithmCount)
	}
	return constants
}

// listedConstants returns the constants of a file that stand in a list.
func listedConstants(f file) (names []string) {
	for _, d := range f.tree.Decls {
		list, is := d.(*ast.GenDecl)
		if !is || list.Tok != token.CONST || !list.Lparen.IsValid() {
			continue
		}
		for _, one := range list.Specs {
			for _, name := range one.(*ast.ValueSpec).Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

// namesAlgorithms finds constants of algorithms, and texts that are the name of an algorithm.
func namesAlgorithms(f file, constants []string) (problems []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		found := ""
		switch x := n.(type) {
		case *ast.SelectorExpr:
			if of, is := x.X.(*ast.Ident); is && of.Name == "quota" && slices.Contains(constants, x.Sel.Name) {
				found = "quota." + x.Sel.Name
			}
		case *ast.Ident:
			if path.Dir(f.path) == "shared/quota" && slices.Contains(constants, x.Name) {
				found = x.Name
			}
		case *ast.BasicLit:
			text, err := strconv.Unquote(x.Value)
			for a := range quota.Algorithm(quota.AlgorithmCount) {
				if err == nil && text == a.String() {
					found = text
				}
			}
		}
		if found != "" {
			problems = append(problems, f.problem(n.Pos(), found+" is named"))
		}
		return true
	})
	return problems
}
