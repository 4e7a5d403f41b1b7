package rules_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// heading finds the headings of a page below its title.
var heading = regexp.MustCompile(`(?m)^(##+) (.+)$`)

var notInAnchors = regexp.MustCompile(`[^\pL\pN_ -]`)

// anchor returns the name under which a heading is linked to.
func anchor(heading string) string {
	heading = notInAnchors.ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(heading, " ", "-")
}

// A link leads to a file of the tree. If it names a part of a page, the page has that heading.
func TestLinksLeadSomewhere(t *testing.T) {
	link, links := regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]+))?\)`), 0
	for _, name := range markdown(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			target, part := m[1], m[2]
			if strings.Contains(target, "://") {
				continue
			}
			links++
			if target = path.Join(path.Dir(name), target); m[1] == "" {
				target = name
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: a link leads to no file: %v", name, err)
			} else if part != "" && !hasHeading(read(t, target), part) {
				t.Errorf("%s: %s has no heading #%s", name, target, part)
			}
		}
	}
	if links < 200 {
		t.Errorf("only %d links are found", links)
	}
}

// hasHeading reports whether a page has a heading of that name.
func hasHeading(page, name string) bool {
	return slices.ContainsFunc(heading.FindAllStringSubmatch(withoutCode(page), -1), func(h []string) bool {
		return anchor(h[2]) == name
	})
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

// withoutCode returns a page with its fenced code blocks emptied. The numbers of its lines stay.
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
