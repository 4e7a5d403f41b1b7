package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// page has the tables of Envoys.
const page = "docs/run/compatibility.md"

// A table is a table of the page that a command writes, with a row for each Envoy that it runs.
type table struct {
	command string
	rows    []string
}

// tables returns the tables of `make matrix` and of `make test-arm64`.
func tables(t *testing.T) []table {
	versions := pinned(t)
	newest := versions[len(versions)-1]
	return []table{{"make matrix", versions}, {"make test-arm64", []string{newest + " for arm64"}}}
}

// text returns the table in Markdown.
func (b table) text() string {
	var head []string
	for _, c := range checks {
		head = append(head, c.name)
	}
	text := "| Envoy | " + strings.Join(head, " | ") + " |\n|" + strings.Repeat(" --- |", len(checks)+1) + "\n"
	for _, row := range b.rows {
		text += "| " + row + strings.Repeat(" | yes", len(checks)) + " |\n"
	}
	return text
}

// cutPage returns the text of the page between the marks of a table, and the text before and after
// it with the marks.
func (b table) cutPage(content string) (before, text, after string, err error) {
	begin, end := "<!-- written by "+b.command+" -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(content, begin)
	text, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		err = fmt.Errorf("%s has no place for the table of %s", page, b.command)
	}
	return before + begin, text, end + after, err
}

func readPage(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A table that names a version or a check which is not run would be a claim.
func TestThePageNamesTheEnvoysThatAreRun(t *testing.T) {
	content := readPage(t)
	for _, b := range tables(t) {
		_, text, _, err := b.cutPage(content)
		if err != nil {
			t.Fatal(err)
		}
		if want := "\n" + b.text() + "\n"; text != want {
			t.Errorf("%s has\n%s\nwant\n%s\nrun `%s`", page, text, want, b.command)
		}
	}
}

func writeTable(t *testing.T, b table) {
	t.Helper()
	before, _, after, err := b.cutPage(readPage(t))
	if err != nil {
		t.Fatal(err)
	}
	text := before + "\n" + b.text() + "\n" + after
	if err := os.WriteFile(filepath.Join(repository, page), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
