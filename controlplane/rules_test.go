package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weir-proxy/weir/"

// only says which packages may import what; a test of another package may, too, where it looks at the thing itself.
var only = map[string][]string{
	"github.com/labstack/echo":        {"internal/api"},
	"github.com/redis/go-redis":       {"internal/redisstore"},
	"go.etcd.io/bbolt":                {"internal/localstore"},
	"go.yaml.in/yaml":                 {"internal/policydoc"},
	"github.com/prometheus":           {"internal/metrics"},
	"github.com/alecthomas/kong":      {"internal/cli"},
	module + "controlplane/internal/": {"", "internal"},
	module + "filter":                 nil,
	module + "envoytest":              nil,
}

// clocks are the packages that may ask for the time; everybody else is told.
var clocks = []string{"internal/app", "internal/localstore"}

// The house's rules of who may use what, held by reading the source.
func TestRules(t *testing.T) {
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		checkImports(t, path, file)
		if !strings.HasSuffix(path, "_test.go") {
			checkSize(t, files, path, file)
			checkClock(t, files, path, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func within(path string, folders []string) bool {
	for _, f := range folders {
		if f == "" && !strings.Contains(path, "/") || f != "" && strings.HasPrefix(path, f+"/") {
			return true
		}
	}
	return false
}

func checkImports(t *testing.T, path string, file *ast.File) {
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		for prefix, folders := range only {
			if strings.HasPrefix(name, prefix) && !within(path, folders) {
				t.Errorf("%s imports %s", path, name)
			}
		}
	}
}

func checkClock(t *testing.T, files *token.FileSet, path string, file *ast.File) {
	if within(path, clocks) {
		return
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok && x.Name == "time" && (selector.Sel.Name == "Now" || selector.Sel.Name == "Since") {
			t.Errorf("%s asks for the time", files.Position(selector.Pos()))
		}
		return true
	})
}

func checkSize(t *testing.T, files *token.FileSet, path string, file *ast.File) {
	if lines := files.Position(file.End()).Line; lines > 400 {
		t.Errorf("%s has %d lines, at most 400 are allowed", path, lines)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if lines := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; lines > 60 {
			t.Errorf("%s: %s has %d lines, at most 60 are allowed", path, f.Name.Name, lines)
		}
	}
}
