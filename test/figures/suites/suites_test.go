package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/test/figures"
)

const (
	repository    = "../../.."
	documentation = repository + "/docs"
)

// Steps of `make test` have no row of their own, and test-everything is this command.
func TestEachTargetThatTestsHasARow(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	steps, err := os.ReadFile(filepath.Join(repository, "tools/test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(makefile), -1)
	var names []string
	for _, m := range targets {
		names = append(names, m[1])
		isStep := regexp.MustCompile(`step (setup )?(build )?` + m[1] + `\b`).Match(steps)
		if !strings.HasPrefix(m[1], "test-") || m[1] == "test-everything" || isStep {
			continue
		}
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.target == m[1] }) {
			t.Errorf("make %s has no row among the suites", m[1])
		}
	}
	for _, s := range suites {
		if !slices.Contains(names, s.target) {
			t.Errorf("the Makefile has no target %s", s.target)
		}
	}
}

// A run of some targets replaces their rows and keeps the other rows.
func TestARunOfSomeTargetsKeepsTheOthers(t *testing.T) {
	ran := func(target, version string, passed bool) outcome {
		return outcome{target, passed, figures.Facts{
			Date: "2026-11-30", Version: version, Machine: "2 processors", Took: time.Minute,
		}}
	}
	past := report{[]outcome{ran("test", "old", true), ran("matrix", "old", true)}}
	got := past.replaceOutcomes([]outcome{ran("matrix", "new", false)}).table()
	want := map[string]string{
		"`make test`":      "2026-11-30 old passed 1m0s 2 processors",
		"`make matrix`":    "2026-11-30 new failed 1m0s 2 processors",
		"`make test-mesh`": "never    ",
	}
	if len(got) != len(suites)+1 {
		t.Errorf("%d rows, want the titles and a row for each of %d suites", len(got), len(suites))
	}
	for _, row := range got {
		if text, found := want[row[0]]; found && strings.Join(row[2:], " ") != text {
			t.Errorf("%s: %q, want %q", row[0], strings.Join(row[2:], " "), text)
		}
	}
}

// The page shows the runs of the file beside it, and nothing that was written by hand.
func TestThePageShowsItsRuns(t *testing.T) {
	var r report
	if err := figures.Decode(filepath.Join(documentation, fileName), &r); err != nil {
		t.Fatal(err)
	}
	page, err := r.page()
	if err != nil {
		t.Fatal(err)
	}
	if err := page.Check(documentation); err != nil {
		t.Error(err)
	}
}

// The nightly workflow runs each suite that is not the check of each change.
func TestTheNightlyWorkflowRunsEachSuite(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(repository, ".github/workflows/nightly.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct {
			Strategy struct {
				Matrix struct{ Target []string }
			}
		}
	}
	if err := yaml.Unmarshal(content, &workflow); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, s := range suites[1:] {
		want = append(want, s.target)
	}
	if got := workflow.Jobs["suite"].Strategy.Matrix.Target; suites[0].target != "test" || !slices.Equal(got, want) {
		t.Errorf("the workflow runs %q, want %q", got, want)
	}
}
