package rules_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weir-proxy/weir/tools/habits"
)

// Pages and comments are for readers who see them for the first time, many of them in a foreign
// language. So lines are narrow, and these words are not used.

const (
	maxProseColumns = 100
	maxCodeColumns  = 120
)

// checkWords returns the words that a line of prose should not have. Text in backticks is a name
// and may have them.
func checkWords(line string) (problems []string) {
	line = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)").ReplaceAllString(line, "x")
	for _, w := range habits.Banned {
		if found := w.Pattern.FindString(line); found != "" {
			problems = append(problems, fmt.Sprintf("%q: write %s", strings.TrimSpace(found), w.Instead))
		}
	}
	return problems
}

// checkPage returns all that is wrong with the prose of a page. Tables, code, lines with a link and
// text that a program writes into the page may be wider.
func checkPage(name, page string) (problems []string) {
	generated := false
	for i, line := range strings.Split(withoutCode(page), "\n") {
		if strings.HasPrefix(line, "<!--") {
			generated = strings.HasPrefix(line, "<!-- figures")
		}
		for _, problem := range checkWords(line) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s", name, i+1, problem))
		}
		free := generated || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "<!--") ||
			strings.Contains(line, "](")
		if width := utf8.RuneCountInString(line); width > maxProseColumns && !free {
			problems = append(problems, fmt.Sprintf(
				"%s:%d: a line of prose has at most %d columns, this one has %d", name, i+1, maxProseColumns, width))
		}
	}
	return problems
}

func TestPagesAreInPlainWords(t *testing.T) {
	for _, name := range markdown(t) {
		for _, problem := range checkPage(name, read(t, name)) {
			t.Error(problem)
		}
	}
}

func TestTheWordingsAreFound(t *testing.T) {
	wide := strings.Repeat("wide ", 21)
	for _, c := range []struct{ page, want string }{
		{"The centre grants.", "the control plane"},
		{"Centres of gravity are others, `the centre` is a name.", ""},
		{"It tells nobody.", "no caller"},
		{"Whoever asks is served.", "a caller that"},
		{"It waits. Who asks too often is refused.", "the actor as the subject"},
		{"It is refused. Who decides that?", ""},
		{"It was told so.", "reports"},
		{"X says whether it is.", "reports whether"},
		{"A lot lapses.", "leased tokens"},
		{"It allots a slot.", ""},
		{"Full. Of a bucket that is full nothing is known.", "subject first"},
		{"Of 15 requests 11 pass.", ""},
		{"one\n" + wide, "p.md:2: a line of prose has at most 100 columns, this one has 105"},
		{"| " + wide + " |", ""},
		{"```text\n" + wide + "\n```", ""},
	} {
		problems := checkPage("p.md", c.page)
		if c.want == "" && len(problems) > 0 || c.want != "" && !slices.ContainsFunc(problems,
			func(p string) bool { return strings.Contains(p, c.want) }) {
			t.Errorf("%q: %q, want %q", c.page, problems, c.want)
		}
	}
}
