//go:build !linux

package stack

import "syscall"

// processAttributes makes a child the leader of a group. No other kernel than Linux ends the child
// with the launcher.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
