package rules_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// checkProse returns the mistakes in a file, by three names: words of its comments and tests, the
// width of comments, and the width of code.
func checkProse(f file) map[string][]string {
	problems := map[string][]string{}
	lines := strings.Split(f.source, "\n")
	inComment, isOutput := map[int]bool{}, map[int]bool{}
	for _, group := range f.tree.Comments {
		output := false // What an example prints is no prose.
		for _, c := range group.List {
			from := f.set.Position(c.Pos())
			output = output || strings.HasPrefix(c.Text, "// Output:")
			if isOutput[from.Line] = output; output {
				continue
			}
			for i, line := range strings.Split(c.Text, "\n") {
				inComment[from.Line+i] = inComment[from.Line+i] || i > 0 || isComment(lines[from.Line-1])
				for _, problem := range checkWords(strings.TrimSpace(strings.TrimLeft(line, "/* \t"))) {
					problems["words"] = append(problems["words"],
						fmt.Sprintf("%s:%d: %s", f.path, from.Line+i, problem))
				}
			}
		}
	}
	for _, text := range testTexts(f) {
		for _, problem := range checkWords(text.words) {
			problems["words"] = append(problems["words"], fmt.Sprintf("%s:%d: %s", f.path, text.line, problem))
		}
	}
	raw := rawLines(f)
	for i, line := range lines {
		width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
		isDirective := strings.HasPrefix(line, "//go:") || strings.HasPrefix(line, "//export")
		switch {
		case isOutput[i+1]:
		case inComment[i+1] && width > maxProseColumns && !isDirective && !strings.Contains(line, "://"):
			problems["comments"] = append(problems["comments"],
				fmt.Sprintf("%s:%d: a comment has at most %d columns, this one has %d", f.path, i+1, maxProseColumns,
					width))
		case !inComment[i+1] && width > maxCodeColumns && !raw[i+1]:
			problems["code"] = append(problems["code"],
				fmt.Sprintf("%s:%d: a line of code has at most %d columns, this one has %d", f.path, i+1,
					maxCodeColumns, width))
		}
	}
	return problems
}

// testText is a text of a test for people.
type testText struct {
	line  int
	words string
}

// testTexts returns the names of a file's tests, as words, and the texts that they print when they
// fail.
func testTexts(f file) (texts []testText) {
	add := func(at token.Pos, words string) { texts = append(texts, testText{f.set.Position(at).Line, words}) }
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if strings.HasPrefix(n.Name.Name, "Test") {
				add(n.Pos(), capital.ReplaceAllString(n.Name.Name, " $0"))
			}
		case *ast.CallExpr:
			method, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || !prints.MatchString(method.Sel.Name) {
				break
			}
			for _, arg := range n.Args {
				if text, ok := arg.(*ast.BasicLit); ok && text.Kind == token.STRING {
					add(text.Pos(), text.Value[1:len(text.Value)-1])
				}
			}
		}
		return true
	})
	return texts
}

var (
	capital = regexp.MustCompile("[A-Z]")
	prints  = regexp.MustCompile("^(Error|Fatal|Log)f?$")
)

// rawLines returns the lines with a raw string, such as a struct tag: nothing can break them.
func rawLines(f file) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(l.Value, "`") {
			for at := f.set.Position(l.Pos()).Line; at <= f.set.Position(l.End()).Line; at++ {
				lines[at] = true
			}
		}
		return true
	})
	return lines
}

// isComment reports whether a line begins with a comment.
func isComment(line string) bool {
	line = strings.TrimLeft(line, " \t")
	return strings.HasPrefix(line, "//") || strings.HasPrefix(line, "/*")
}

// The comments of the code are in plain words and narrow, and its lines fit on a screen.
func TestCommentsAreInPlainWords(t *testing.T) {
	for _, f := range goFiles(t) {
		if ast.IsGenerated(f.tree) {
			continue
		}
		for kind, problems := range checkProse(f) {
			t.Errorf("%s:\n%s", kind, strings.Join(problems, "\n"))
		}
	}
}

func TestTheRulesOfCommentsFindWhatTheyForbid(t *testing.T) {
	wide := strings.Repeat("wide ", 20)
	for _, c := range []struct{ source, kind, want string }{
		{"// The centre grants.\nvar a int", "words", "a.go:2: \"centre\": write the control plane"},
		{"var a int // whoever asks", "words", "a.go:2:"},
		{"/*\nOf a bucket nothing is known.\n*/\nvar a int", "words", "a.go:3:"},
		{"// It reports whether it is.\nvar a = \"nobody\"", "words", ""},
		{"func TestWhoeverAsksIsServed() {}", "words", "a.go:2: \"Whoever\""},
		{"func whoeverAsks() {}", "words", ""},
		{"func f() {\n\tt.Fatalf(\"nobody asks: %v\", err)\n}", "words", "a.go:3: \"nobody\""},
		{"// " + wide + "x\nvar a int", "comments", "a.go:2: a comment has at most 100 columns, this one has 104"},
		{"func f() {\n\t// " + wide + "\n}", "comments", "a.go:3:"},
		{"var a int // " + wide, "comments", ""},
		{"func ExampleA() {\n\t// Output: b\n\t// nobody " + wide + "\n}", "comments", ""},
		{"func ExampleA() {\n\t// Output: b\n\t// nobody " + wide + "\n}", "words", ""},
		{"func ExampleA() {\n\t// " + wide + "\n\n\t// Output: b\n}", "comments", "a.go:3:"},
		{"var a = \"" + wide + wide + "\"", "code", "a.go:2: a line of code has at most 120 columns"},
		{"var a = `" + wide + wide + "`", "code", ""},
		{"// https://example.com/" + strings.ReplaceAll(wide, " ", "") + "xxxxxxxxxxxxxxxxxxxxxxx\nvar a int",
			"comments", ""},
	} {
		got := strings.Join(checkProse(parse(t, "a.go", "package a\n"+c.source+"\n"))[c.kind], "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%q: %q, want %q", c.source, got, c.want)
		}
	}
}

// The comment of a function begins with its name. So a rename reaches the comment.
func TestCommentsOfFunctionsBeginWithTheirNames(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.isTest() || f.isSupport() || ast.IsGenerated(f.tree) {
			continue
		}
		for _, d := range f.tree.Decls {
			d, isFunction := d.(*ast.FuncDecl)
			if !isFunction || d.Name.Name == "init" || d.Name.Name == "main" || d.Doc.Text() == "" {
				continue
			}
			if first, _, _ := strings.Cut(d.Doc.Text(), " "); strings.Trim(first, ",:") != d.Name.Name {
				t.Error(f.problem(d.Pos(), "the comment of "+d.Name.Name+" begins with "+strconv.Quote(first)))
			}
		}
	}
}
