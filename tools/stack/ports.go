package stack

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Ports for FreePort are below the ports that the kernel gives to outgoing connections (from
// 32768). So none of these connections, of which tests open many, takes a port between its choice
// and its use.
const (
	lowestPort  = 15_000
	highestPort = 32_000
)

var (
	reservedMu sync.Mutex
	reserved   = map[int]bool{}
)

// FreePort returns a TCP port without a listener on this machine, which no earlier call returned.
func FreePort() (int, error) {
	reservedMu.Lock()
	defer reservedMu.Unlock()
	for range 1000 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if reserved[port] || !isFree("127.0.0.1", port) || !isFree("::1", port) && hasIPv6() {
			continue
		}
		reserved[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("found no free TCP port from %d to %d", lowestPort, highestPort)
}

func isFree(host string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

var hasIPv6 = sync.OnceValue(func() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
})

// HasIPv6 reports whether this machine has an IPv6 loopback address.
func HasIPv6() bool { return hasIPv6() }

// InUse describes who listens on a port of this machine, like "envoy, process 4711"; empty if the
// port is free. Envoy shares its ports with every process that also asks to share, so two Envoys
// would divide the requests in silence: ask before you start an Envoy.
func InUse(port int) string {
	if isFree("127.0.0.1", port) {
		return ""
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if inode := listeningInode(table, port); inode != "" {
			if owner := socketOwner(inode); owner != "" {
				return owner
			}
		}
	}
	return "another process"
}

// listeningInode looks for a listening socket in the kernel's table: the second field is the local
// address, the fourth the state (0A is listening), the tenth the inode.
func listeningInode(table string, port int) string {
	file, err := os.Open(table)
	if err != nil {
		return ""
	}
	defer file.Close()
	suffix := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
			return f[9]
		}
	}
	return ""
}

// socketOwner finds the process that holds the socket. Sockets of other users are invisible without
// root.
func socketOwner(inode string) string {
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, path := range descriptors {
		if target, err := os.Readlink(path); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		pid := strings.Split(path, "/")[2]
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return strings.TrimSpace(string(name)) + ", process " + pid
	}
	return ""
}
