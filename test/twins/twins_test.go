// Package twins tests the twins of the Go package client: Python for httpx, TypeScript for fetch.
// If this machine lacks a program, the tests fail.
package twins

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	folder = "../../client"
	// maxLines is how long a twin may be, so that a reader takes it in before copying it.
	maxLines = 150
)

// installed returns the path of a file that tools/setup.sh clients installs.
func installed(t *testing.T, name string) string {
	t.Helper()
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cache, "clients", name)
}

// run runs one of the installed programs, in a folder of the client.
func run(t *testing.T, dir, program string, arguments ...string) string {
	t.Helper()
	path := installed(t, program)
	if err := stack.Executable(path); err != nil {
		t.Fatalf("%s is not installed (%v): run tools/setup.sh clients", program, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, path, arguments...)
	command.Dir = filepath.Join(folder, dir)
	command.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, output)
	}
	return string(output)
}

// count finds the number of tests in an output by a pattern, and fails if it is below least.
func count(t *testing.T, output, pattern string, least int) {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(output)
	if m == nil {
		t.Fatalf("no number of tests in\n%s", output)
	}
	if n, err := strconv.Atoi(m[1]); err != nil || n < least {
		t.Errorf("%s tests ran, want %d\n%s", m[1], least, output)
	}
}

func TestPython(t *testing.T) {
	count(t, run(t, "python", "venv/bin/python", "-m", "unittest"), `Ran (\d+) tests`, 5)
}

func TestTypeScript(t *testing.T) {
	run(t, "typescript", "node", installed(t, "tsc.js"), "--project", ".")
	output := run(t, "typescript", "node", "--test", "--test-reporter=tap", "weir-client.test.mjs")
	count(t, output, `(?m)^# pass (\d+)$`, 70)
}

func TestTwinsAreShort(t *testing.T) {
	for _, name := range []string{"python/weir_client.py", "typescript/weir-client.ts"} {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(content), "\n"); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are allowed", name, n, maxLines)
		}
	}
}
