package rules_test

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
)

const coldFile = "tools/tinygo/transform/cold.go"

// The build makes the filter's cold functions small. It finds them by the beginnings of their
// names, and fails if a beginning fits no function, minutes later than this test.
func TestColdFunctionsAreThere(t *testing.T) {
	names := functionNames(t)
	for _, line := range regexp.MustCompile(`"((?:shared|filter)/[^"]+)": +(?:true|false)`).
		FindAllStringSubmatch(read(t, coldFile), -1) {
		if !strings.Contains(names, "\n"+line[1]) {
			t.Errorf("%s: no function begins with %q: write its new name", coldFile, line[1])
		}
	}
	if !strings.Contains(names, "\nfilter/internal/remote/leasing.Client.Flush\n") {
		t.Error("the functions of the filter are not seen")
	}
}

// functionNames returns the functions of the filter as cold.go names them, one on each line.
func functionNames(t *testing.T) string {
	var names strings.Builder
	names.WriteString("\n")
	for _, f := range goFiles(t) {
		if !underAny(f.path, []string{"shared", "filter"}) || f.isTest() {
			continue
		}
		for _, decl := range f.tree.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				names.WriteString(path.Dir(f.path) + "." + receiverOf(fn) + fn.Name.Name + "\n")
			}
		}
	}
	return names.String()
}

// receiverOf returns the type of a method with a dot, nothing for a function.
func receiverOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	receiver := fn.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}
