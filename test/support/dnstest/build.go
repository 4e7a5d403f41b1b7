package dnstest

import (
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/resolver.go
var resolver []byte

// Build builds the program of a folder, as it is but for one thing: it asks a Server alone for
// names, where Env is in its environment. It returns the file, which ends with the test.
func Build(t testing.TB, folder string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	source, overlay := filepath.Join(dir, "resolver.go"), filepath.Join(dir, "overlay")
	program := filepath.Join(dir, "program")
	files, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "resolver.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{source: resolver, overlay: files} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-overlay", overlay, "-o", program, ".")
	build.Dir = here
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s does not build: %v\n%s", folder, err, output)
	}
	return program
}

// Env returns the environment by which a program that Build has built asks this server.
func (s *Server) Env() []string { return []string{"NAME_SERVER=" + s.conn.LocalAddr().String()} }
