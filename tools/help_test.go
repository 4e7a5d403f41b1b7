package tools

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each command for developers answers --help with what it does, and does nothing else.
func TestEveryToolHasHelp(t *testing.T) {
	scripts, err := filepath.Glob("*.sh")
	if err != nil {
		t.Fatal(err)
	}
	commands, err := filepath.Glob("*/main.go")
	if err != nil || len(scripts) < 2 || len(commands) < 4 {
		t.Fatal(scripts, commands, err)
	}
	for _, path := range append(scripts, commands...) {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		run := exec.CommandContext(ctx, "bash", path, "--help")
		if dir, isGo := strings.CutSuffix(path, "/main.go"); isGo {
			run = exec.CommandContext(ctx, "go", "run", ".", "--help")
			run.Dir = dir
			if dir == "images" { // A module of its own, whose libraries only its build fetches.
				continue
			}
		}
		out, err := run.CombinedOutput()
		if err != nil || len(out) < 100 {
			t.Errorf("%s --help: %v\n%s", path, err, out)
		}
	}
}
