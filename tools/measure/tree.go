package main

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tree has the counts of a source tree.
type tree struct {
	packages             []*pkg
	functions, fileLines []int // sorted
	lines, code          int
	comments             int
	over100, over120     int
	longest              int
	tokens               int
	mutatingIfs          int
	exported, documented int
	sentences            int
	habits               []int // by habitsCounted: how often each occurs
}

// pkg is the files of one folder.
type pkg struct {
	dir   string
	set   *token.FileSet
	files []*ast.File
}

// readTree measures the Go files under root.
func readTree(root string) (*tree, error) {
	t := &tree{}
	byDir := map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && isSkipped(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		dir := filepath.Dir(path)
		p := byDir[dir]
		if p == nil {
			p = &pkg{dir: dir, set: token.NewFileSet()}
		}
		counted, err := t.addFile(p, path)
		if counted && byDir[dir] == nil {
			byDir[dir] = p
			t.packages = append(t.packages, p)
		}
		return err
	})
	slices.Sort(t.functions)
	slices.Sort(t.fileLines)
	return t, err
}

// isSkipped reports whether a folder has nothing to count: no product code, or code of other
// projects.
func isSkipped(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "test") ||
		slices.Contains([]string{"testdata", "vendor", "third_party", "build"}, name)
}

// addFile counts one file. It reports false for a generated file, which does not count.
func (t *tree) addFile(p *pkg, path string) (bool, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	f, err := parser.ParseFile(p.set, path, source, parser.ParseComments)
	if err != nil || ast.IsGenerated(f) {
		return false, err
	}
	p.files = append(p.files, f)
	t.addLines(string(source))
	t.addTokens(source)
	t.addNames(p.set, f)
	t.addComments(f)
	return true, nil
}

func (t *tree) addLines(source string) {
	lines := strings.Split(strings.TrimSuffix(source, "\n"), "\n")
	t.fileLines = append(t.fileLines, len(lines))
	for _, line := range lines {
		width := len([]rune(strings.ReplaceAll(line, "\t", "    ")))
		t.lines++
		t.longest = max(t.longest, width)
		if width > 100 {
			t.over100++
		}
		if width > 120 {
			t.over120++
		}
	}
}

// addTokens counts lines of code and of comments, and the tokens on the former.
func (t *tree) addTokens(source []byte) {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	code, comments := map[int]bool{}, map[int]bool{}
	for {
		at, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		line := file.Line(at)
		switch {
		case tok == token.COMMENT:
			for i := range strings.Count(text, "\n") + 1 {
				comments[line+i] = true
			}
		case tok == token.SEMICOLON && text == "\n":
		default:
			t.tokens++
			code[line] = true
		}
	}
	t.code += len(code)
	for line := range comments {
		if !code[line] {
			t.comments++
		}
	}
}

// addNames counts functions, exported names with a comment, and ifs that change a variable first.
func (t *tree) addNames(set *token.FileSet, f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			t.functions = append(t.functions, set.Position(d.End()).Line-set.Position(d.Pos()).Line+1)
			t.countName(d.Name, d.Doc)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					t.countName(s.Name, d.Doc, s.Doc, s.Comment)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						t.countName(name, d.Doc, s.Doc, s.Comment)
					}
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if i, ok := n.(*ast.IfStmt); ok && changesVariable(i.Init) {
			t.mutatingIfs++
		}
		return true
	})
}

func (t *tree) countName(name *ast.Ident, docs ...*ast.CommentGroup) {
	if !name.IsExported() {
		return
	}
	t.exported++
	if slices.ContainsFunc(docs, func(d *ast.CommentGroup) bool { return d != nil }) {
		t.documented++
	}
}

// changesVariable reports whether an if's init statement changes an existing variable.
func changesVariable(init ast.Stmt) bool {
	switch s := init.(type) {
	case *ast.IncDecStmt:
		return true
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	}
	return false
}

// valueAt returns the value at a share of sorted values, 0 if there are none.
func valueAt(sorted []int, share float64) int {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

func ratioOf(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
