package stack

import "syscall"

// processAttributes makes a child the leader of a group, which dies with the launcher.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
