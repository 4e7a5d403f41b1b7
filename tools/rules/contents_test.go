package rules_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// heading finds the headings of a page below its title.
var heading = regexp.MustCompile(`(?m)^(##+) (.+)$`)

// anchor is the name under which a heading is linked to.
func anchor(heading string) string {
	heading = regexp.MustCompile(`[^\pL\pN_ -]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(heading, " ", "-")
}

// A link to a part of a page names a heading that the page has.
func TestLinksNameHeadings(t *testing.T) {
	link := regexp.MustCompile(`\]\(([\w./-]*)#([^)]+)\)`)
	for _, name := range markdown(t) {
		for _, m := range link.FindAllStringSubmatch(withoutCode(read(t, name)), -1) {
			target := name
			if m[1] != "" {
				target = path.Join(path.Dir(name), m[1])
			}
			found := false
			for _, h := range heading.FindAllStringSubmatch(withoutCode(read(t, target)), -1) {
				found = found || anchor(h[2]) == m[2]
			}
			if !found {
				t.Errorf("%s: %s has no heading #%s", name, target, m[2])
			}
		}
	}
}

// A link to a file of the tree names one that is there.
func TestLinksNameFiles(t *testing.T) {
	link := regexp.MustCompile(`\]\(([\w./-]+)(#[^)]*)?\)`)
	links := 0
	for _, name := range markdown(t) {
		for _, m := range link.FindAllStringSubmatch(withoutCode(read(t, name)), -1) {
			links++
			if _, err := os.Stat(filepath.Join(root, path.Dir(name), m[1])); err != nil {
				t.Errorf("%s: the link %s names no file", name, m[1])
			}
		}
	}
	if links < 200 {
		t.Errorf("only %d links are found", links)
	}
}

// markdown lists the pages of the tree.
func markdown(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range found {
			pages = append(pages, filepath.ToSlash(strings.TrimPrefix(page, root+string(filepath.Separator))))
		}
	}
	if len(pages) < 10 {
		t.Fatalf("there are only %d pages", len(pages))
	}
	return pages
}

// withoutCode is a page with its fenced code blocks emptied. The numbers of its lines stay.
func withoutCode(page string) string {
	lines, inside := strings.Split(page, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if inside || fence {
			lines[i] = ""
		}
		inside = inside != fence
	}
	return strings.Join(lines, "\n")
}
