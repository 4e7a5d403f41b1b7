package rules

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// noTools are programs in the tree that no developer calls: users and tests call the built
// programs, and go generate calls generators.
var noTools = []string{
	"main.go", "filter/main.go", "test/figures/bench/empty/main.go", "test/clients/retryable/main.go",
	"test/support/kubetest/pause/main.go", "test/compose/whoami/main.go",
	"controlplane/internal/rules/policydoc/reference/main.go",
}

// Each command for developers answers --help with its purpose, and does nothing else.
func TestEveryToolHasHelp(t *testing.T) {
	list := exec.Command("git", "ls-files", "*.sh", "*main.go")
	list.Dir = "../.."
	out, err := list.Output()
	files := strings.Fields(string(out))
	if err != nil || len(files) < 15 {
		t.Fatal(files, err)
	}
	for _, path := range noTools {
		if !slices.Contains(files, path) {
			t.Errorf("%s is not in the tree", path)
		}
	}
	for _, path := range files {
		name := filepath.Base(path)
		if slices.Contains(noTools, path) || strings.Contains(path, "/testdata/") {
			continue
		}
		if name != "main.go" && filepath.Ext(name) != ".sh" {
			continue
		}
		if name == "main.go" && !inTheMainModule(path) { // Only its build fetches its libraries.
			text, err := os.ReadFile(filepath.Join("../..", path))
			if err != nil || !bytes.Contains(text, []byte("flag.Parse()")) {
				t.Errorf("%s reads no flags, so it takes --help for none: %v", path, err)
			}
			continue
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		run := exec.CommandContext(ctx, "bash", name, "--help")
		if name == "main.go" {
			run = exec.CommandContext(ctx, "go", "run", ".", "--help")
		}
		run.Dir = filepath.Join("../..", filepath.Dir(path))
		run.WaitDelay = time.Second // Its children may hold its output.
		if out, err := run.CombinedOutput(); err != nil || len(out) < 100 {
			t.Errorf("%s --help: %v\n%s", path, err, out)
		}
	}
}

// inTheMainModule reports whether no folder on the way to a file has a module of its own.
func inTheMainModule(path string) bool {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join("../..", dir, "go.mod")); err == nil {
			return false
		}
	}
	return true
}
