package redistest

import (
	"embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed testdata/clock.c testdata/disk.c
var sources embed.FS

// preloaded is a library that is preloaded into processes. It changes the system's answers to them
// by a number that can be set.
type preloaded struct {
	t       testing.TB
	library string
	file    *os.File
	// variable is the name under which the library finds the file.
	variable string
}

// preload builds a library, whose number is 0. It needs a C compiler.
func preload(t testing.TB, name, variable string) *preloaded {
	t.Helper()
	text, err := sources.ReadFile("testdata/" + name + ".c")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, name+".c"), filepath.Join(dir, name+".so")
	if err := os.WriteFile(source, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
		source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v (tools/setup.sh build installs it)\n%s", err, output)
	}
	file, err := os.Create(filepath.Join(dir, "number"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	p := &preloaded{t, library, file, variable}
	p.set(0)
	return p
}

func (p *preloaded) set(n int64) {
	p.t.Helper()
	if _, err := p.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(n)), 0); err != nil {
		p.t.Fatal(err)
	}
}

// env returns the environment of a process into which all of these are preloaded.
func env(all ...*preloaded) []string {
	libraries, files := "LD_PRELOAD=", []string(nil)
	for _, p := range all {
		libraries += p.library + " "
		files = append(files, p.variable+"="+p.file.Name())
	}
	return append(files, libraries)
}
