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
var figuresOf = regexp.MustCompile(`(?s)<!-- .*?<!-- (end|until)`)

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
