package redistest

import "testing"

// Disk is the disk of servers, which can be full or hang.
type Disk struct{ *preloaded }

// NewDisk makes a disk that is well. It needs a C compiler.
func NewDisk(t testing.TB) *Disk {
	t.Helper()
	return &Disk{preload(t, "disk", "DISK_STATE")}
}

// Fill has nothing be written to files until Mend: no space is left.
func (d *Disk) Fill() { d.set(1) }

// Hang has nothing that writes or flushes files return until Mend.
func (d *Disk) Hang() { d.set(2) }

// Mend makes the disk good again.
func (d *Disk) Mend() { d.set(0) }

// Start starts a server on this disk.
func (d *Disk) Start(options ...string) *Server {
	d.t.Helper()
	return startEnv(d.t, env(d.preloaded), options...)
}
