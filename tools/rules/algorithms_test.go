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

	"github.com/weir-proxy/weir/shared/quota"
)

// CONTRIBUTING.md lists the files that a new algorithm changes. No other code may name one: it asks
// for a property. Importers alone name them for another reason: they choose one for a limit.
func TestOnlyTheListedFilesNameAnAlgorithm(t *testing.T) {
	_, list, found := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## A new algorithm\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no section on a new algorithm")
	}
	list, _, _ = strings.Cut(list, "\n## ")
	var listed []string
	for _, m := range regexp.MustCompile("`([a-z][a-z/_]+/[a-z_]+[.][a-z]+)`").FindAllStringSubmatch(list, -1) {
		read(t, m[1]) // It fails on a file that is not there.
		listed = append(listed, m[1])
	}
	constants := algorithmConstants(parse(t, "shared/quota/algorithm.go", read(t, "shared/quota/algorithm.go")))
	if len(constants) != quota.AlgorithmCount {
		t.Fatalf("shared/quota/algorithm.go has the constants %v, and %d algorithms", constants, quota.AlgorithmCount)
	}
	naming := 0
	for _, name := range listFiles(t) {
		f := parse(t, name, read(t, name))
		if f.isTest() || f.isSupport() || strings.HasPrefix(name, "controlplane/internal/offline/importer/") {
			continue
		}
		problems := namesAlgorithms(f, constants)
		if slices.Contains(listed, name) {
			naming += len(problems)
			continue
		}
		for _, problem := range problems {
			t.Error(problem)
		}
	}
	if naming == 0 {
		t.Error("no listed file names an algorithm: this test sees none")
	}
}

// algorithmConstants are the names in the list that begins with the type Algorithm and iota.
func algorithmConstants(f file) (names []string) {
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

// namesAlgorithms finds constants of algorithms and texts that are the name of one.
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
			problems = append(problems, f.problem(n.Pos(), found+" is named: ask for a property of quota.Algorithm, "+
				"or list the file in CONTRIBUTING.md"))
		}
		return true
	})
	return problems
}
