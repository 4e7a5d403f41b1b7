package rules_test

import (
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page on architecture names each package of both halves and of what they share, and no other.
func TestThePageNamesEachPackage(t *testing.T) {
	command := exec.Command("go", "list", "-e", "-tags", "tinygo", "./filter/...", "./controlplane/...", "./shared/...")
	command.Dir = root
	output, err := command.Output()
	if err != nil {
		t.Fatal("go list:", err)
	}
	// The two mains, and what belongs to a package of the table.
	packages := []string{"filter", "controlplane", "quotatest"}
	for _, p := range strings.Fields(string(output)) {
		packages = append(packages, path.Base(p))
	}
	_, page, _ := strings.Cut(read(t, "docs/internals/architecture.md"), "\n## Which package does what\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var named []string
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]+) \\|").FindAllStringSubmatch(page, -1) {
		for _, name := range strings.Split(m[1], ", ") {
			named = append(named, strings.Trim(name, "`"))
		}
	}
	for _, name := range named {
		if !slices.Contains(packages, name) {
			t.Errorf("docs/internals/architecture.md names %s, which is no package", name)
		}
	}
	for _, name := range packages[3:] {
		if !slices.Contains(named, name) && !slices.Contains(packages[:3], name) {
			t.Errorf("docs/internals/architecture.md does not name the package %s", name)
		}
	}
}
