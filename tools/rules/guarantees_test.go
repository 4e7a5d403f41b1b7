package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// suites are the folders of the tests that pages name beside each promise. Tests of the suite
// scenario are rows of a table.
var suites = map[string]string{
	"e2e": "test/e2e", "wasm": "test/wasm", "simulation": "test/simulation", "quota": "shared/quota",
	"lease":   "shared/lease",
	"limiter": "filter/internal/decide/limiter", "bucketstore": "filter/internal/base/bucketstore",
	"redisstore": "controlplane/internal/store/redisstore",
	"localstore": "controlplane/internal/store/localstore", "regions": "controlplane/internal/grant/regions",
	"app": "controlplane/internal/app", "auth": "controlplane/internal/access/auth",
	"access": "controlplane/internal/access", "enforcement": "controlplane/internal/rules/enforcement",
	"consumers": "controlplane/internal/rules/consumers",
	"api":       "controlplane/internal/serve/api",
	"leases":    "controlplane/internal/grant/leases",
	"policies":  "controlplane/internal/rules/policies",
	"nodes":     "controlplane/internal/fleet/nodes", "match": "shared/match",
	"inflight": "filter/internal/load/inflight", "leasing": "filter/internal/remote/leasing",
	"configsync": "filter/internal/remote/configsync", "scenario": "filter/scenariotest",
}

// Each promise and each failure of these pages has a sentence in each cell, and tests that exist.
func TestEachPromiseHasItsTest(t *testing.T) {
	rows := 0
	pages := ""
	for _, page := range manualPages(t) {
		pages += read(t, page) + "\n"
	}
	for _, line := range shown(pages) {
		rows++
		cells := strings.Split(strings.Trim(line, " "), "|")
		cells = cells[1 : len(cells)-1]
		for _, cell := range cells {
			if strings.TrimSpace(cell) == "" {
				t.Errorf("a cell is empty: %s", line)
			}
		}
		expectTests(t, cells[len(cells)-1])
	}
	if rows < 75 {
		t.Errorf("the tables have only %d rows", rows)
	}
}

// citation is a suite, or two, and its tests in the prose of a page: (wasm OneTest, AnotherOne).
var citation = regexp.MustCompile(`\(([a-z0-9]+ (?:and [a-z0-9]+ )?[A-Z]\w+[^();]*)[);]`)

// Each test that the prose of a page names exists.
func TestEachCitedTestExists(t *testing.T) {
	cited := 0
	for _, page := range manualPages(t) {
		text := strings.Join(strings.Fields(read(t, page)), " ")
		for _, match := range citation.FindAllStringSubmatch(text, -1) {
			if first, _, _ := strings.Cut(match[1], " "); suites[first] != "" {
				cited++
				expectTests(t, match[1])
			}
		}
	}
	if cited < 15 {
		t.Errorf("the pages cite only %d times", cited)
	}
}

// expectTests holds that the tests exist that a text names, each in all suites that it names
// before: "redisstore and localstore Conformance, wasm OneTest, AnotherOne".
func expectTests(t *testing.T, text string) {
	t.Helper()
	var in []string
	named := true
	for _, word := range strings.Fields(strings.ReplaceAll(text, ",", " ")) {
		switch {
		case word == "and":
		case suites[word] != "" && named:
			in, named = []string{word}, false
		case suites[word] != "":
			in = append(in, word)
		default:
			named = true
			if len(in) == 0 {
				t.Errorf("no suite has %s: %s", word, text)
			}
			for _, suite := range in {
				if !hasTest(t, suites[suite], word) {
					t.Errorf("%s has no test whose name contains %s: %s", suite, word, text)
				}
			}
		}
	}
}

// shown returns the rows of the tables whose last column is "shown by".
func shown(page string) (rows []string) {
	inside := false
	for _, line := range strings.Split(page, "\n") {
		switch {
		case strings.HasSuffix(line, "| shown by |"):
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && !strings.HasPrefix(line, "| ---"):
			rows = append(rows, line)
		}
	}
	return rows
}

// hasTest reports whether a folder has a test, or a scenario, whose name contains a text.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	ending, found := "_test.go", regexp.MustCompile(`(?m)^func Test\w*`+name)
	if folder == suites["scenario"] { // A row is named in words.
		words := strings.Join(strings.Split(name, ""), " ?")
		ending, found = ".go", regexp.MustCompile(`(?i)Name: "[^"]*`+words)
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*"+ending))
	if err != nil || len(files) == 0 {
		t.Fatal(folder, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found.Match(content) {
			return true
		}
	}
	return false
}
