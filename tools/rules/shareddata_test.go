package rules_test

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const namesFile = "filter/internal/base/shareddata/names.go"

// All values in shared data have their names in one file, and no two have the same: a second use of
// a letter would corrupt the first one's value in silence.
func TestSharedDataNamesStandInOneFile(t *testing.T) {
	letters := map[string]string{}
	for _, f := range goFiles(t) {
		if !strings.HasPrefix(f.path, "filter/") {
			continue
		}
		switch {
		case f.path == namesFile:
			ast.Inspect(f.tree, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok || len(spec.Values) != 1 {
					return true
				}
				letter := spec.Values[0].(*ast.BasicLit).Value
				if before, taken := letters[letter]; taken {
					t.Errorf("%s and %s both have the letter %s", before, spec.Names[0], letter)
				}
				letters[letter] = spec.Names[0].Name
				return true
			})
		case !f.isTest() && !f.isSupport():
			for _, problem := range ownNames(f) {
				t.Error(problem)
			}
		}
	}
	if len(letters) < 10 {
		t.Errorf("%d names were found in %s", len(letters), namesFile)
	}
}

// Only the package that the names file says writes a value may use its name. A package that does
// not know the name cannot make the value's key, so no other one writes it.
func TestEachSharedValueHasOneWriter(t *testing.T) {
	users := map[string][]string{}
	for _, f := range goFiles(t) {
		if strings.HasPrefix(f.path, "filter/") && !f.isTest() && !f.isSupport() {
			for _, used := range usedNames(f) {
				if in := path.Base(path.Dir(f.path)); !slices.Contains(users[used], in) {
					users[used] = append(users[used], in)
				}
			}
		}
	}
	for name, comment := range namedValues(parse(t, namesFile, read(t, namesFile))) {
		if in := users[name]; len(in) != 1 {
			t.Errorf("shareddata.%s is used in the packages %v: one alone may write it", name, in)
		} else if !regexp.MustCompile(`\b` + in[0] + `\b`).MatchString(comment) {
			t.Errorf("%s is written by %s, and its comment in %s does not say so: %s", name, in[0], namesFile, comment)
		}
	}
}

// namedValues returns the names of shared data, each with its comment or the comment of the names
// before it.
func namedValues(f file) map[string]string {
	values, comment := map[string]string{}, ""
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if spec.Doc != nil {
				comment = spec.Doc.Text()
			}
			values[spec.Names[0].Name] = comment
		}
		return true
	})
	return values
}

// usedNames returns the names of the package shareddata that a file uses.
func usedNames(f file) (names []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if x, ok := n.(*ast.SelectorExpr); ok && isPackage(x.X, "shareddata") {
			names = append(names, x.Sel.Name)
		}
		return true
	})
	return names
}

// ownNames finds names of shared data that a file makes up: a character as the argument of a method
// Key, and a conversion to Name.
func ownNames(f file) (problems []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		literal, isLiteral := call.Args[0].(*ast.BasicLit)
		if method.Sel.Name == "Key" && isLiteral && literal.Kind == token.CHAR ||
			method.Sel.Name == "Name" && isPackage(method.X, "shareddata") {
			problems = append(problems, f.problem(call.Pos(), "names of shared data belong in "+namesFile))
		}
		return true
	})
	return problems
}

func isPackage(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

func TestOwnNamesAreFound(t *testing.T) {
	for source, want := range map[string]int{
		"func f() { space.Key('x') }":                1,
		"func f() { space.Key(shareddata.Name(7)) }": 1,
		"func f() { space.Key(shareddata.Leader) }":  0,
		"func f() { p.Key() }":                       0,
	} {
		if got := ownNames(parse(t, "filter/internal/a/a.go", "package p\n"+source)); len(got) != want {
			t.Errorf("%s: %q, want %d problems", source, got, want)
		}
	}
}
