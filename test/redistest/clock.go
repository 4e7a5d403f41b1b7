package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clockSource moves a process's wall clock. libfaketime would, but its calls recurse into Debian's
// Redis, whose allocator asks for the time before anything else.
//
//go:embed testdata/clock.c
var clockSource []byte

// Clock is the wall clock of processes, which can be off.
type Clock struct {
	t    testing.TB
	file *os.File
	env  []string
}

// NewClock makes a clock that is right. It needs a C compiler.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
		source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v (tools/setup.sh build installs it)\n%s", err, output)
	}
	file, err := os.Create(filepath.Join(dir, "offset"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	c := &Clock{t, file, []string{"LD_PRELOAD=" + library, "CLOCK_OFFSET=" + file.Name()}}
	c.Set(0)
	return c
}

// Set makes the clock wrong by whole seconds, from now on.
func (c *Clock) Set(off time.Duration) {
	c.t.Helper()
	if _, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(off/time.Second)), 0); err != nil {
		c.t.Fatal(err)
	}
}

// Env is what a process that goes by this clock has in its environment. It must read the clock by
// the system's C library.
func (c *Clock) Env() []string { return c.env }

// Start is Start for a server that goes by this clock.
func (c *Clock) Start(options ...string) *Server {
	c.t.Helper()
	return startEnv(c.t, c.env, options...)
}
