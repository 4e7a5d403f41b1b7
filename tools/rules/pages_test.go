package rules_test

import (
	"path/filepath"
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

// The map of the manual leads to every page, each page says whom it is for, and the front page
// stays short.
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
	if words := len(strings.Fields(read(t, "README.md"))); words > 1200 {
		t.Errorf("README.md has %d words, at most 1200 may be read in five minutes", words)
	}
}
