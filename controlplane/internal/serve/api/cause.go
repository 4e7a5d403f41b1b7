package api

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// causes maps a part of an error text of the store to a sentence for operators. The text itself may
// hold keys and addresses.
var causes = []struct{ sign, said string }{
	{"may evict", "Redis may evict state that cannot be lost: " +
		"set maxmemory-policy noeviction, or start with --redis-may-evict"},
	{"which is older than", "Redis is too old: upgrade it to 6.2 or newer"},
	{"may still make the change", "the disk of the store does not answer, and may still make the change when " +
		"it does: see weir audit before you try again, and look at the disk's health"},
	{"the disk does not answer", "the disk of the store does not answer: look at its health and at the kernel's log"},
	{"is damaged", "the store holds a damaged record, which the log names: restore a backup"},
	{"NOAUTH", "Redis asks for a password: give it in the URL, or with password_file"},
	{"WRONGPASS", "Redis refuses the user or the password"},
	{"invalid password", "Redis refuses the user or the password"},
	{"without any password configured", "Redis has no password, and was given a password"},
	{"NOPERM", "Redis does not permit its user a command or a key: docs/run/redis.md lists the necessary permissions"},
	{"can't run this command",
		"Redis does not permit its user a command: docs/run/redis.md lists the necessary permissions"},
	{"ACL failure in script", // of Valkey
		"Redis does not permit its user a command: docs/run/redis.md lists the necessary permissions"},
	{"OOM command not allowed", "Redis is out of memory (maxmemory)"},
	{"READONLY", "Redis is a read-only replica"},
	{"MISCONF", "Redis cannot write its file, and so takes no changes"},
	{"NOREPLICAS", "Redis has fewer replicas than it asks for (min-replicas-to-write)"},
	{"DENIED", "Redis is in protected mode, and refuses other hosts as long as it has no password"},
	{"MASTERDOWN", "Redis is a replica that has lost its primary"},
	{"CLUSTERDOWN", "the Redis Cluster is down or lacks a part of its slots"},
	{"LOADING", "Redis is loading its data"},
	{"max number of clients", "Redis has reached its maximum of clients (maxclients)"},
	{"is busy running a script", "Redis is busy with a script"},
}

// Cause explains an error of the store without internals; empty if err does not tell the cause.
func Cause(err error) string {
	var network *net.OpError
	var slow net.Error
	// Errors that explain themselves, and the disk.
	switch {
	case err == nil:
		return ""
	case errors.Is(err, push.ErrNotReady), errors.Is(err, policies.ErrUnreadable):
		return err.Error()
	case errors.Is(err, syscall.ENOSPC):
		return "the disk of the store is full"
	case errors.Is(err, syscall.EROFS):
		return "the disk of the store is read-only"
	}
	// A store of another protocol.
	for _, other := range []error{wire.ErrNewerStore, wire.ErrOlderStore, wire.ErrUnreleasedStore} {
		if errors.Is(err, other) {
			return "cannot use the store: " + other.Error()
		}
	}
	// Redis' own words.
	text := err.Error()
	for _, c := range causes {
		if strings.Contains(text, c.sign) {
			return c.said
		}
	}
	// The connection.
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return "the store does not answer in time"
	case errors.As(err, &network):
		return "the store cannot be reached: " + network.Op + ": " + network.Err.Error()
	}
	return ""
}

// followError says without internals why the store cannot be followed.
func followError(err error) string {
	if said := Cause(err); said != "" {
		return said
	}
	return "the store cannot be followed; the log says why"
}
