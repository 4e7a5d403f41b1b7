package rules_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/habits"
)

// The habits of names and of functions, beside the habits of sentences in tools/habits.
const (
	bareName     = "bare-name"
	startsWithIs = "starts-with-is"
	longSilent   = "long-silent"
	bannedName   = "banned-name"
)

// A cell is one habit in one sort of text in one room. The sorts are code (comments of the product,
// its names and functions), strings (the sentences in it) and tests (comments and strings of them),
// and pages.
type cell struct{ room, sort, habit string }

func (c cell) column() string { return c.sort + " " + c.habit }

func (c cell) compare(d cell) int {
	return cmp.Or(cmp.Compare(c.room, d.room), cmp.Compare(c.sort, d.sort), cmp.Compare(c.habit, d.habit))
}

// advice returns how to write instead.
func advice(habit string) string {
	switch habit {
	case bareName:
		return `a verb and an object: not "add" but "addLine"`
	case startsWithIs:
		return `how the function acts: not "startSpan is the start" but "startSpan starts a span"`
	case longSilent:
		return "a comment for each block of a function of over 30 lines"
	case bannedName:
		return "another name: it has a word that comments may not have"
	}
	i := slices.IndexFunc(habits.Counted, func(h habits.Habit) bool { return h.Name == habit })
	return habits.Counted[i].Instead
}

// roomOf returns the room of a file: of a package under internal the first folder there, elsewhere
// the top folder. A page is a room of its own by its name, in whichever folder it lies.
func roomOf(name string) string {
	if strings.HasSuffix(name, ".md") {
		return "pages/" + path.Base(name)
	}
	parts := strings.Split(path.Dir(name), "/")
	if len(parts) > 2 && parts[1] == "internal" {
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}

// partOf returns the part of the tree that a room belongs to.
func partOf(room string) string { return strings.SplitN(room, "/", 2)[0] }

// A census counts habits.
type census struct {
	counts map[cell]int
	sizes  map[cell]int // sentences, or functions, that could have the habit
}

func (s census) count(c cell, occurs int) {
	s.sizes[c]++
	s.counts[c] += occurs
}

// prose counts the habits of each sentence of a text.
func (s census) prose(room, sort, text string) {
	for _, sentence := range habits.Sentences(text) {
		for _, h := range habits.Counted {
			s.count(cell{room, sort, h.Name}, len(h.Find(sentence)))
		}
	}
}

// code counts the habits of a Go file. A test's names and functions do not count: its name is a
// sentence, and a table of cases is long.
func (s census) code(f file) {
	room, sort, stringSort := roomOf(f.path), "code", "strings"
	isTest := f.isTest() || f.isSupport()
	if isTest {
		sort, stringSort = "tests", "tests"
	}
	for _, group := range f.tree.Comments {
		s.prose(room, sort, group.Text())
	}
	named := map[string]bool{}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil && isSentence(text) {
				s.prose(room, stringSort, text)
			}
		}
		if id, ok := n.(*ast.Ident); ok && !named[id.Name] {
			named[id.Name] = true
			s.count(cell{room, sort, bannedName}, truth(hasBannedWord(id.Name)))
		}
		return true
	})
	if isTest {
		return
	}
	for _, d := range f.tree.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
			s.function(room, f, d)
		}
	}
}

func (s census) function(room string, f file, d *ast.FuncDecl) {
	name := d.Name.Name
	if !d.Name.IsExported() && name != "main" && name != "init" {
		s.count(cell{room, "code", bareName}, truth(isWord.MatchString(name)))
	}
	if d.Doc != nil {
		s.count(cell{room, "code", startsWithIs}, truth(isOrAre.MatchString(d.Doc.Text())))
	}
	if from, to := f.set.Position(d.Pos()).Line, f.set.Position(d.End()).Line; to-from >= 30 {
		silent := !slices.ContainsFunc(f.tree.Comments, func(g *ast.CommentGroup) bool {
			return g.Pos() > d.Body.Lbrace && g.End() < d.Body.Rbrace
		})
		s.count(cell{room, "code", longSilent}, truth(silent))
	}
}

// hasBannedWord reports whether one of the words that a name consists of is banned.
func hasBannedWord(name string) bool {
	words := capital.ReplaceAllString(name, " $0")
	return houseWord.MatchString(words) || slices.ContainsFunc(habits.Banned, func(h habits.Habit) bool {
		return !strings.HasSuffix(h.Name, "-first") && h.Pattern.MatchString(words)
	})
}

var (
	// Words of no field that stood in names for longer than in sentences.
	houseWord = regexp.MustCompile(`(?i)\b(hearsay|reckonable|punish(ed)?|rekeyed)\b`)
	isWord    = regexp.MustCompile(`^[a-z]+$`)
	isOrAre   = regexp.MustCompile(`^\w+ (is|are|was|were|what|how|when|who|which)\b`)
	aWord     = regexp.MustCompile(`(^| )[a-zA-Z]+`)
	// A comment of Lua, and of TypeScript: the whole line, or the end of one after two spaces.
	luaComment = regexp.MustCompile(`(?m)^\s*--+ ?(.*)$`)
	tsComment  = regexp.MustCompile(`(?m)^\s*(?://+|/?\*+/?) ?(.*)$`)
	// A text of the REST API's description.
	described = regexp.MustCompile(`(?m)^\s*(?:- )?(?:description|summary):`)
)

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// isSentence reports whether a string is for people: four words and no markup or code.
func isSentence(text string) bool {
	return len(aWord.FindAllString(text, -1)) >= 4 && !strings.ContainsAny(text, "{}<>$\t")
}

// comments returns the comments of a file in another language, sentences over several lines joined.
func comments(pattern *regexp.Regexp, source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if m := pattern.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			b.WriteString(strings.TrimSuffix(m[1], "*/"))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// page counts the habits of a page, each cell of a table and each heading by itself. A heading may
// begin with "What", and the text that a program wrote into the page is not counted.
func (s census) page(name, text string) {
	var b strings.Builder
	for line := range strings.Lines(withoutCode(written(text))) {
		switch {
		case strings.HasPrefix(line, "<!--"):
		case strings.HasPrefix(line, "#"):
			line = strings.TrimLeft(line, "# ")
			b.WriteString("\n\n" + strings.TrimPrefix(line, "What ") + "\n\n")
		case strings.HasPrefix(line, "|"):
			b.WriteString("\n\n" + strings.ReplaceAll(line, "|", "\n\n"))
		default:
			b.WriteString(strings.TrimLeft(line, " \t"))
		}
	}
	s.prose(roomOf(name), "page", b.String())
}

// api counts the habits of the REST API's descriptions: all lines that begin with a capital or go
// on with a sentence, which no other value does.
func (s census) api(name, text string) {
	var b strings.Builder
	inside, indent := false, 0
	for line := range strings.Lines(text) {
		deep := len(line) - len(strings.TrimLeft(line, " "))
		if m := described.FindString(line); m != "" {
			inside, indent = true, deep
			rest := strings.Trim(strings.TrimSpace(strings.TrimPrefix(line, m)), `|>-"'`)
			b.WriteString("\n\n" + rest + "\n")
			continue
		}
		if inside = inside && (deep > indent || strings.TrimSpace(line) == ""); inside {
			b.WriteString(strings.TrimLeft(line, " "))
		}
	}
	s.prose(roomOf(name), "strings", b.String())
}

// countRooms counts the habits of all rooms.
func countRooms(t *testing.T) (counts, sizes map[cell]int) {
	t.Helper()
	s := census{map[cell]int{}, map[cell]int{}}
	for _, f := range goFiles(t) {
		if path.Dir(f.path) != "tools/habits" && !ast.IsGenerated(f.tree) { // habits has examples of all.
			s.code(f)
		}
	}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name = filepath.ToSlash(strings.TrimPrefix(name, root+string(filepath.Separator)))
		if base := entry.Name(); entry.IsDir() {
			if base == "build" || base == "node_modules" || base == "testdata" || len(base) > 2 && base[0] == '.' {
				return fs.SkipDir
			}
			return nil
		}
		sort := "code"
		if strings.Contains(name, "test") {
			sort = "tests"
		}
		switch {
		case strings.HasSuffix(name, ".gen.ts"): // Generated from the API's description.
		case strings.HasSuffix(name, ".lua"):
			s.prose(roomOf(name), sort, comments(luaComment, read(t, name)))
		case strings.HasSuffix(name, ".ts"), strings.HasSuffix(name, ".tsx"), strings.HasSuffix(name, ".svelte"):
			s.prose(roomOf(name), sort, comments(tsComment, read(t, name)))
		case strings.HasSuffix(name, ".md"):
			s.page(name, read(t, name))
		case strings.HasPrefix(name, "api/") && strings.HasSuffix(name, ".yaml"):
			s.api(name, read(t, name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rooms := len(s.sizes); rooms < 100 {
		t.Fatalf("only %d rooms and habits are counted", rooms)
	}
	return s.counts, s.sizes
}

// report prints how frequent the habits are in 1000 sentences or functions, a line a room and sort.
func report(counts, sizes map[cell]int) string {
	columns := []string{bareName, startsWithIs, longSilent, bannedName}
	for _, h := range habits.Counted {
		columns = append(columns, h.Name)
	}
	rooms := map[cell]bool{}
	for c := range sizes {
		rooms[cell{room: c.room, sort: c.sort}] = true
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s %-8s %9s", "in 1000", "sort", "sentences")
	for _, column := range columns {
		fmt.Fprintf(&b, " %s", column)
	}
	b.WriteString("\n")
	for _, c := range slices.SortedFunc(maps.Keys(rooms), cell.compare) {
		fmt.Fprintf(&b, "%-34s %-8s %9d", c.room, c.sort, sizes[cell{c.room, c.sort, "what"}])
		for _, column := range columns {
			here := cell{c.room, c.sort, column}
			rate := "-"
			if sizes[here] > 0 {
				rate = strconv.Itoa(1000 * counts[here] / sizes[here])
			}
			fmt.Fprintf(&b, " %*s", len(column), rate)
		}
		b.WriteString("\n")
	}
	return b.String()
}
