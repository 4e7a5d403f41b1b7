package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// mutant is one change to one file.
type mutant struct {
	file, function string
	before, after  string // the expression
	nth            int    // of several that would have one name, counted from 0
	source         []byte // the whole file, changed
}

// String names the change; it holds no line number, so that the name outlives edits elsewhere.
func (m mutant) String() string {
	name := fmt.Sprintf("%s %s: %s => %s", filepath.ToSlash(m.file), m.function, m.before, m.after)
	if m.nth > 0 {
		name += fmt.Sprintf(" (%d)", m.nth+1)
	}
	return name
}

// flips are the replacements of an operator.
var flips = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.EQL: {"!="}, token.NEQ: {"=="}, token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
	token.ADD_ASSIGN: {"-="}, token.SUB_ASSIGN: {"+="}, token.INC: {"--"}, token.DEC: {"++"},
}

// digits are the numbers that are changed by one, with their replacements.
var digits = map[string]string{"0": "1", "1": "0"}

// mutator collects the changes to one file.
type mutator struct {
	set      *token.FileSet
	file     string
	source   []byte
	function string
	mutants  []mutant
}

// mutate returns all changes to the functions of a file.
func mutate(file string, source []byte) ([]mutant, error) {
	m := &mutator{set: token.NewFileSet(), file: file, source: source}
	tree, err := parser.ParseFile(m.set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			m.function = f.Name.Name
			ast.Inspect(f.Body, m.visit)
		}
	}
	return m.mutants, nil
}

func (m *mutator) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		m.flip(n, n.Op, n.OpPos)
	case *ast.AssignStmt:
		m.flip(n, n.Tok, n.TokPos)
	case *ast.IncDecStmt:
		m.flip(n, n.Tok, n.TokPos)
	case *ast.BasicLit:
		if to, ok := digits[n.Value]; ok && n.Kind == token.INT {
			m.replace(n, n.Pos(), n.End(), to)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			m.replace(n, n.Pos(), n.X.Pos(), "")
		}
	case *ast.CallExpr:
		name := m.text(n.Fun.Pos(), n.Fun.End())
		if name == "max" || name == "min" {
			for _, arg := range n.Args {
				m.replace(n, n.Pos(), n.End(), m.text(arg.Pos(), arg.End()))
			}
		}
		return name != "errors.New" // The words of a message are no decision.
	}
	return true
}

func (m *mutator) flip(n ast.Node, op token.Token, at token.Pos) {
	for _, to := range flips[op] {
		m.replace(n, at, at+token.Pos(len(op.String())), to)
	}
}

// replace adds a change of the text between two places, within a node.
func (m *mutator) replace(n ast.Node, from, to token.Pos, text string) {
	before, after := line(m.text(n.Pos(), n.End())), line(m.text(n.Pos(), from)+text+m.text(to, n.End()))
	nth := 0
	for _, other := range m.mutants {
		if other.function == m.function && other.before == before && other.after == after {
			nth++
		}
	}
	changed := m.text(m.start(), from) + text + m.text(to, m.start()+token.Pos(len(m.source)))
	m.mutants = append(m.mutants, mutant{
		file: m.file, function: m.function, source: []byte(changed), before: before, after: after, nth: nth,
	})
}

// start is where the file begins.
func (m *mutator) start() token.Pos { return token.Pos(m.set.File(token.Pos(1)).Base()) }

func (m *mutator) text(from, to token.Pos) string {
	return string(m.source[from-m.start() : to-m.start()])
}

// line puts an expression into one line.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }
