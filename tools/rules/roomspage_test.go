package rules_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var backticked = regexp.MustCompile("`([^`]+)`")

// The page on rooms names each package of both halves and each shared package, in its room, and no
// other.
func TestThePageNamesEachPackageInItsRoom(t *testing.T) {
	command := exec.Command("go", "list", "-e", "-tags", "tinygo", "./filter/...", "./controlplane/...", "./shared/...")
	command.Dir = root
	output, err := command.Output()
	if err != nil {
		t.Fatal("go list:", err)
	}
	page := read(t, "docs/internals/rooms.md")
	placed := map[string][]string{} // the folders that the page has for a package
	folder, room := "", ""
	for line := range strings.Lines(page) {
		if title, isTitle := strings.CutPrefix(line, "## "); isTitle {
			folder = map[string]string{"Shared\n": "shared", "Filter\n": "filter/internal",
				"Control plane\n": "controlplane/internal"}[title]
			room = ""
		}
		columns := strings.Split(line, "|")
		if !strings.HasPrefix(line, "|") || folder == "" {
			continue
		}
		if len(columns) == 5 { // room, package, does
			if name := backticked.FindStringSubmatch(columns[1]); name != nil {
				room = "/" + name[1]
			}
			columns = columns[1:]
		}
		for _, name := range backticked.FindAllStringSubmatch(columns[1], -1) {
			placed[name[1]] = append(placed[name[1]], folder+room)
		}
	}
	for _, p := range strings.Fields(string(output)) {
		p = strings.TrimPrefix(p, module)
		if p == "filter" || p == "controlplane" { // The two programs.
			continue
		}
		name := path.Base(p)
		places, isPlaced := placed[name]
		switch {
		case !slices.ContainsFunc(places, func(place string) bool { return under(p, place) }) &&
			!strings.Contains(page, "`"+name+"`"):
			t.Errorf("docs/internals/rooms.md does not name the package %s", p)
		case isPlaced && strings.Contains(p, "/internal/") &&
			!slices.ContainsFunc(places, func(place string) bool { return under(p, place) }):
			t.Errorf("docs/internals/rooms.md has the package %s in %v", p, places)
		}
	}
	for name, places := range placed {
		if !slices.ContainsFunc(strings.Fields(string(output)), func(p string) bool {
			return path.Base(p) == name && underAny(strings.TrimPrefix(p, module), places)
		}) {
			t.Errorf("docs/internals/rooms.md names %s, which is no package of %v", name, places)
		}
	}
}
