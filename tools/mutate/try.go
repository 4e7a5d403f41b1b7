package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// fate is the result of a change.
type fate string

const (
	noticed  fate = "noticed"
	survived fate = "SURVIVED"
	unbuilt  fate = "no Go" // the compiler refuses it
)

// tryMutant runs the tests of the packages on a change, number n, until some notice it. A negative
// n changes nothing. The tests of one package may take the time of the limit: a change that makes
// them hang is noticed.
func tryMutant(dir string, n int, m mutant, packages []string, limit time.Duration) (fate, string) {
	// Write the change, and an overlay with which the compiler reads it in place of the original.
	overlay := filepath.Join(dir, fmt.Sprint(n, ".json"))
	replace := map[string]string{}
	if n >= 0 {
		changed := filepath.Join(dir, fmt.Sprint(n, ".go"))
		if err := os.WriteFile(changed, m.source, 0o600); err != nil {
			return unbuilt, err.Error()
		}
		original, err := filepath.Abs(m.file)
		if err != nil {
			return unbuilt, err.Error()
		}
		replace[original] = changed
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(overlay, text, 0o600)
	}
	if err != nil {
		return unbuilt, err.Error()
	}
	// Build and run the tests of each package until a test notices.
	for i, p := range packages {
		binary := filepath.Join(dir, fmt.Sprint(n, "-", i, ".test"))
		build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, p)
		if output, err := build.CombinedOutput(); err != nil {
			return unbuilt, string(output)
		}
		output, err := runTest(binary, p, limit)
		if os.Remove(binary); err != nil {
			return noticed, output
		}
	}
	return survived, ""
}

// runTest runs a test binary. Its properties are tried on the same values each time, so that a fate
// is not left to chance.
func runTest(binary, directory string, limit time.Duration) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, binary, "-test.failfast", "-rapid.nofailfile", "-rapid.seed=3")
	command.Dir = directory
	text, err := command.CombinedOutput()
	return string(text), err
}
