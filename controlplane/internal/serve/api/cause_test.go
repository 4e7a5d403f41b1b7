package api_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/wire"
)

func TestCause(t *testing.T) {
	for text, want := range map[string]string{
		"NOAUTH Authentication required.": "Redis asks for a password: " +
			"give it in the URL, or with password_file",
		"WRONGPASS invalid username-password pair or user is " +
			"disabled.": "Redis refuses the user or the password",
		"ERR AUTH <password> called without any password configured for the default user. Are you sure " +
			"your configuration is correct?": "Redis has no password, and was given a password",
		"no connection: DENIED Redis is running in protected mode because protected mode is enabled: EOF": "Redis is " +
			"in protected mode, and refuses other hosts as long as it has no password",
		"ERR ACL failure in script: User weir has no permissions to run the 'time' command": "Redis does not permit " +
			"its user a command: docs/run/redis.md lists the necessary permissions",
		"OOM command not allowed when used memory > 'maxmemory'. " +
			"script: 12ab": "Redis is out of memory (maxmemory)",
		"ERR Error running script: @user_script: -READONLY You can't write against": "Redis is a read-only replica",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently": "Redis cannot write its file, " +
			"and so takes no changes",
		"NOREPLICAS Not enough good replicas to write.": "Redis has fewer replicas than " +
			"it asks for (min-replicas-to-write)",
		"ERR something else with weir:{meta}:version": "",
	} {
		if got := api.Cause(fmt.Errorf("asking: %w", errors.New(text))); got != want {
			t.Errorf("%s is said as %q, want %q", text, got, want)
		}
	}
	full := &os.PathError{Op: "write", Path: "/var/lib/weir.db", Err: syscall.ENOSPC}
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)},
		Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for err, want := range map[error]string{
		full:                     "the disk of the store is full",
		refused:                  "the store cannot be reached: dial: connect: connection refused",
		context.DeadlineExceeded: "the store does not answer in time",
		// A Redis that hangs: the system's connection still takes written bytes.
		&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}: "the store does not answer in time",
		os.ErrDeadlineExceeded: "the store does not answer in time",
		fmt.Errorf("cannot use Redis: %w", wire.ErrNewerStore): "cannot use the store: a newer build has written it: " +
			"upgrade the control plane",
	} {
		if got := api.Cause(err); got != want {
			t.Errorf("%v is said as %q, want %q", err, got, want)
		}
	}
	if api.Cause(nil) != "" {
		t.Error("nothing is something")
	}
}
