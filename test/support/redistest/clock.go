package redistest

import (
	"testing"
	"time"
)

// Clock is the wall clock of processes, which can be off. libfaketime would move it, but its calls
// recurse into Debian's Redis, whose allocator asks for the time before anything else.
type Clock struct{ *preloaded }

// NewClock makes a clock that is right. It needs a C compiler.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	return &Clock{preload(t, "clock", "CLOCK_OFFSET")}
}

// Set makes the clock wrong by whole seconds, from now on.
func (c *Clock) Set(off time.Duration) {
	c.t.Helper()
	c.set(int64(off / time.Second))
}

// Env returns the environment of a process that uses this clock. It must read the clock by the
// system's C library.
func (c *Clock) Env() []string { return env(c.preloaded) }

// Start does the same as the function Start, for a server that uses this clock.
func (c *Clock) Start(options ...string) *Server {
	c.t.Helper()
	return startEnv(c.t, c.Env(), options...)
}

// StartOn starts a server that also has this disk.
func (c *Clock) StartOn(d *Disk, options ...string) *Server {
	c.t.Helper()
	return startEnv(c.t, env(c.preloaded, d.preloaded), options...)
}
