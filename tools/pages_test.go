package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The map of the manual leads to every page, each page says whom it is for, and the front page
// stays short.
func TestTheMapHasEveryPage(t *testing.T) {
	content, err := os.ReadFile("../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		name := filepath.Base(page)
		if name != "README.md" && !strings.Contains(string(content), "]("+name) {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, opening, _ := strings.Cut(string(text), "\n\n")
		if name != "README.md" && name != "reference.md" && !strings.HasPrefix(opening, "For ") {
			t.Errorf("%s does not begin with whom it is for", name)
		}
	}
	front, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(front))); words > 1200 {
		t.Errorf("README.md has %d words, at most 1200 may be read in five minutes", words)
	}
}
