package rules_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// generatedPages are pages that a program writes as a whole.
var generatedPages = map[string]bool{"docs/reference/fields.md": true}

// manualPages returns the pages of the manual, without its map.
func manualPages(t *testing.T) (pages []string) {
	t.Helper()
	for _, page := range markdown(t) {
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" {
			pages = append(pages, page)
		}
	}
	if len(pages) < 30 {
		t.Fatalf("the manual has only %d pages", len(pages))
	}
	return pages
}

// figuresOf finds the parts of a page that a program writes.
var figuresOf = regexp.MustCompile(`(?s)<!-- .*?<!-- (?:end|until)[^>]*-->`)

// written returns the text of a page that people wrote.
func written(page string) string { return figuresOf.ReplaceAllString(page, "") }

// readAll reads several pages as one text.
func readAll(t *testing.T, pages []string) (all string) {
	t.Helper()
	for _, page := range pages {
		all += read(t, page) + "\n"
	}
	return all
}

// The map of the manual leads to every page, each page says whom it is for and stays short, and so
// does the front page.
func TestTheMapHasEveryPage(t *testing.T) {
	links := read(t, "docs/README.md")
	for _, page := range manualPages(t) {
		if name, _ := filepath.Rel("docs", page); !strings.Contains(links, "]("+name) {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
		_, opening, _ := strings.Cut(read(t, page), "\n\n")
		if !generatedPages[page] && !strings.HasPrefix(opening, "For ") {
			t.Errorf("%s does not begin with whom it is for", page)
		}
	}
	for _, page := range manualPages(t) {
		if words := len(strings.Fields(written(read(t, page)))); words > 2500 && !generatedPages[page] {
			t.Errorf("%s has %d words, at most 2500 are read as one: split it by its purposes", page, words)
		}
	}
	if words := len(strings.Fields(read(t, "README.md"))); words > 1200 {
		t.Errorf("README.md has %d words, at most 1200 may be read in five minutes", words)
	}
}

// maxCellWords is how many words a cell of a table has at most. Longer text goes below the table.
const maxCellWords = 25

// longCells returns the cells of a page's tables that have too many words. A list of tests, in the
// column "shown by", is free.
func longCells(page string) (cells []string) {
	names := false
	for _, line := range strings.Split(withoutCode(written(page)), "\n") {
		row, inTable := strings.CutPrefix(line, "|")
		if !inTable {
			names = false
			continue
		}
		names = names || strings.HasSuffix(line, "| shown by |")
		columns := strings.Split(strings.TrimSuffix(row, "|"), "|")
		if names {
			columns = columns[:len(columns)-1]
		}
		for _, cell := range columns {
			if len(strings.Fields(cell)) > maxCellWords {
				cells = append(cells, strings.TrimSpace(cell))
			}
		}
	}
	return cells
}

// maxParagraphWords is how many words a paragraph or an item of a list has at most.
const maxParagraphWords = 90

var (
	// beginsItem matches the begin of an item of a list.
	beginsItem = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	// linkTarget matches the end of a link, which readers do not see.
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
)

// longParagraphs returns the paragraphs of a page that have too many words.
func longParagraphs(page string) (paragraphs []string) {
	var words []string
	end := func() {
		if len(words) > maxParagraphWords {
			paragraphs = append(paragraphs, strings.Join(words[:8], " "))
		}
		words = nil
	}
	for _, line := range strings.Split(withoutCode(written(page)), "\n") {
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "|") || strings.HasPrefix(text, "#") || beginsItem.MatchString(line) {
			end()
		}
		if !strings.HasPrefix(text, "|") && !strings.HasPrefix(text, "#") {
			words = append(words, strings.Fields(linkTarget.ReplaceAllString(text, "]"))...)
		}
	}
	end()
	return paragraphs
}

func TestParagraphsAreShort(t *testing.T) {
	for _, page := range markdown(t) {
		for _, begin := range longParagraphs(read(t, page)) {
			t.Errorf("%s: a paragraph has more than %d words, split it: %s …", page, maxParagraphWords, begin)
		}
	}
	long := strings.Repeat("word ", maxParagraphWords+1)
	for page, want := range map[string]int{
		long:                                       1,
		"- " + long:                                1,
		long + "\n\n" + long:                       2,
		strings.Repeat("- "+long[:300]+"\n", 3):    0,
		strings.Repeat(long[:300]+"\n\n", 3):       0,
		"```\n" + long + "\n```":                   0,
		"| " + long + " |":                         0,
		long[:5*maxParagraphWords] + "[word](a b)": 1,
	} {
		if got := longParagraphs(page); len(got) != want {
			t.Errorf("%q has the long paragraphs %q, want %d", page, got, want)
		}
	}
}

func TestCellsOfTablesAreShort(t *testing.T) {
	for _, page := range markdown(t) {
		for _, cell := range longCells(read(t, page)) {
			t.Errorf("%s: a cell has more than %d words, move some below the table: %s", page, maxCellWords, cell)
		}
	}
	long := strings.Repeat("word ", maxCellWords+1)
	for page, want := range map[string]int{
		"| a | " + long + " |":                                 1,
		"| a | shown by |\n| --- | --- |\n| b | " + long + "|": 0,
		"| a | shown by |\n| --- | --- |\n| " + long + "| b |": 1,
		"```\n| " + long + " |\n```":                           0,
		long:                                                   0,
	} {
		if got := longCells(page); len(got) != want {
			t.Errorf("%q has the long cells %q, want %d", page, got, want)
		}
	}
}
