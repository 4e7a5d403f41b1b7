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

// digits are the numbers that a change replaces, with their replacements.
var digits = map[string]string{"0": "1", "1": "0"}

// mutator collects the changes to one file.
type mutator struct {
	set      *token.FileSet
	file     string
	source   []byte
	function string
	mutants  []mutant
}

// mutateFile returns all changes to the functions of a file.
func mutateFile(file string, source []byte) ([]mutant, error) {
	m := &mutator{set: token.NewFileSet(), file: file, source: source}
	tree, err := parser.ParseFile(m.set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			m.function = f.Name.Name
			ast.Inspect(f.Body, m.visitNode)
		}
	}
	return m.mutants, nil
}

func (m *mutator) visitNode(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		m.flipOperator(n, n.Op, n.OpPos)
	case *ast.AssignStmt:
		m.flipOperator(n, n.Tok, n.TokPos)
	case *ast.IncDecStmt:
		m.flipOperator(n, n.Tok, n.TokPos)
	case *ast.BasicLit:
		if to, ok := digits[n.Value]; ok && n.Kind == token.INT {
			m.replaceText(n, n.Pos(), n.End(), to)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			m.replaceText(n, n.Pos(), n.X.Pos(), "")
		}
	case *ast.CallExpr:
		name := m.textOf(n.Fun.Pos(), n.Fun.End())
		if name == "max" || name == "min" {
			for _, arg := range n.Args {
				m.replaceText(n, n.Pos(), n.End(), m.textOf(arg.Pos(), arg.End()))
			}
		}
		return name != "errors.New" // The words of a message are no decision.
	}
	return true
}

func (m *mutator) flipOperator(n ast.Node, op token.Token, at token.Pos) {
	for _, to := range flips[op] {
		m.replaceText(n, at, at+token.Pos(len(op.String())), to)
	}
}

// replaceText adds a change of the text between two places, within a node.
func (m *mutator) replaceText(n ast.Node, from, to token.Pos, text string) {
	before, after := oneLine(m.textOf(n.Pos(), n.End())), oneLine(m.textOf(n.Pos(), from)+text+m.textOf(to, n.End()))
	nth := 0
	for _, other := range m.mutants {
		if other.function == m.function && other.before == before && other.after == after {
			nth++
		}
	}
	changed := m.textOf(m.fileStart(), from) + text + m.textOf(to, m.fileStart()+token.Pos(len(m.source)))
	m.mutants = append(m.mutants, mutant{
		file: m.file, function: m.function, source: []byte(changed), before: before, after: after, nth: nth,
	})
}

// fileStart returns where the file begins.
func (m *mutator) fileStart() token.Pos { return token.Pos(m.set.File(token.Pos(1)).Base()) }

func (m *mutator) textOf(from, to token.Pos) string {
	return string(m.source[from-m.fileStart() : to-m.fileStart()])
}

// oneLine puts an expression into one line.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
