package rules_test

import (
	"go/ast"
	"go/token"
	"testing"
)

// Go leaves open whether a variable in a list is read before or after a call in the same list that
// changes it, and TinyGo reads it before where Go reads it after: "return v, fill(&v)" returns the
// old v. Code for the filter calls first, in a statement of its own.
func TestNoListReadsWhatACallInItChanges(t *testing.T) {
	for _, f := range goFiles(t) {
		if !underAny(f.path, []string{"shared", "filter"}) || f.isTest() {
			continue
		}
		for _, problem := range readsAndChanges(f) {
			t.Error(problem)
		}
	}
}

func readsAndChanges(f file) (problems []string) {
	ast.Inspect(f.tree, func(n ast.Node) bool {
		var list []ast.Expr
		switch s := n.(type) {
		case *ast.ReturnStmt:
			list = s.Results
		case *ast.AssignStmt:
			list = s.Rhs
		}
		for i, one := range list {
			variable := variableOf(one)
			for j, other := range list {
				if i != j && variable != "" && changes(other, variable) {
					problems = append(problems, f.problem(one.Pos(), variable+
						" is read in the list in which a call changes it: call first"))
				}
			}
		}
		return true
	})
	return problems
}

// variableOf returns the variable that an expression reads without calling anything: x of x,
// x.field and x[0].
func variableOf(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return variableOf(x.X)
	case *ast.IndexExpr:
		return variableOf(x.X)
	}
	return ""
}

// changes reports whether a call in an expression is handed the address or a slice of a variable.
func changes(e ast.Expr, variable string) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		for _, argument := range call.Args {
			switch x := argument.(type) {
			case *ast.UnaryExpr:
				found = found || x.Op == token.AND && variableOf(x.X) == variable
			case *ast.SliceExpr:
				found = found || variableOf(x.X) == variable
			}
		}
		return true
	})
	return found
}

func TestListsAreFound(t *testing.T) {
	for source, want := range map[string]int{
		"func f() (v [2]byte, ok bool) { return v, copy(v[:], b) == 2 }": 1,
		"func f() (int, error) { return limit, read(&limit) }":           1,
		"func f() { a, b = x.field, x.g(&x) }":                           1,
		"func f() { a, b = x, g(x) }":                                    0,
		"func f() error { return read(&limit) }":                         0,
		"func f() (int, int) { return a[0], len(b[1:]) }":                0,
	} {
		if got := readsAndChanges(parse(t, "shared/a/a.go", "package p\n"+source)); len(got) != want {
			t.Errorf("%s: %q, want %d problems", source, got, want)
		}
	}
}
