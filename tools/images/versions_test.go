package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestVersionsForPackageManagers(t *testing.T) {
	for version, want := range map[string][3]string{
		"0.1.0":            {"0.1.0", "0.1.0", "0.1.0"},
		"0.1.0-test":       {"0.1.0~test", "0.1.0.dev0+test", "0.1.0-test"},
		"0.1.0-rc.1":       {"0.1.0~rc.1", "0.1.0rc1", "0.1.0-rc.1"},
		"0.1.0-rc2":        {"0.1.0~rc2", "0.1.0rc2", "0.1.0-rc2"},
		"0.1.0-rc.1-2-ga":  {"0.1.0~rc.1.2.ga", "0.1.0rc1+2.ga", "0.1.0-rc.1.2.ga"},
		"0.1.0-rc.1-dirty": {"0.1.0~rc.1.dirty", "0.1.0rc1+dirty", "0.1.0-rc.1.dirty"},
		"0.1.0-dirty":      {"0.1.0+dirty", "0.1.0+dirty", "0.1.0-dirty"},
		"0.1.0-7-gabc":     {"0.1.0+7.gabc", "0.1.0+7.gabc", "0.1.0-7.gabc"},
		"f15bf4ad-dirty":   {"0.0.0+f15bf4ad.dirty", "0.0.0+f15bf4ad.dirty", "0.0.0-f15bf4ad.dirty"},
	} {
		if got := [3]string{debianVersion(version), wheelVersion(version), semanticVersion(version)}; got != want {
			t.Errorf("%s is %q, want %q", version, got, want)
		}
	}
}

// dpkg and pip sort a build before a release, its candidates, the release, and builds after it in
// this order.
func TestVersionsSortAsTheyWereMade(t *testing.T) {
	versions := []string{"f15bf4ad-dirty", "0.1.0-alpha.1", "0.1.0-rc.1", "0.1.0-rc.1-2-ga", "0.1.0-rc.2", "0.1.0-rc.10",
		"0.1.0", "0.1.0-7-gabc", "0.1.0-12-gabc", "0.1.1-rc.1", "0.1.1"}
	// pip has its rules in a module of its own.
	python := filepath.Join(clientsDir(), "venv/bin/python")
	const isLess = "import sys\nfrom pip._vendor.packaging.version import Version\n" +
		"sys.exit(not Version(sys.argv[1]) < Version(sys.argv[2]))"
	for i, later := range versions[1:] {
		earlier := versions[i]
		dpkg := exec.Command("dpkg", "--compare-versions", debianVersion(earlier), "lt", debianVersion(later))
		pip := exec.Command(python, "-c", isLess, wheelVersion(earlier), wheelVersion(later))
		for _, command := range []*exec.Cmd{dpkg, pip} {
			if output, err := command.CombinedOutput(); err != nil {
				t.Errorf("%s does not sort %s in front of %s: %v\n%s", command.Args[0], earlier, later, err, output)
			}
		}
	}
}
