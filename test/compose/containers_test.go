package compose

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// statusOf returns a field of a process's status in the kernel.
func statusOf(t *testing.T, pid int, field string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + field + `:\s+(.*)$`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatalf("the kernel does not say %s:\n%s", field, text)
	}
	return m[1]
}

// noCapabilities is a set of capabilities.
const noCapabilities = "0000000000000000"

// checkUsers asks the kernel for the users and the capabilities of the main processes. Two services
// have an entry point that needs capabilities; the other two may never have any.
func checkUsers(t *testing.T, s *services) {
	users := map[string]string{"controlplane": "65532", "envoy": "101", "upstream": "0"}
	confined := []string{"controlplane", "upstream"}
	for _, service := range started {
		pid := s.look(t, service).State.Pid
		user, _, _ := strings.Cut(statusOf(t, pid, "Uid"), "\t")
		if want := users[service]; user != want && want != "" || service == "redis" && user == "0" {
			t.Errorf("%s runs as user %s, want %s", service, user, want)
		}
		fields := []string{"CapEff", "CapPrm", "CapInh", "CapAmb"}
		if slices.Contains(confined, service) {
			fields = append(fields, "CapBnd")
			if got := statusOf(t, pid, "NoNewPrivs"); got != "1" {
				t.Errorf("%s may get new privileges: %s", service, got)
			}
		}
		for _, field := range fields {
			if got := statusOf(t, pid, field); got != noCapabilities {
				t.Errorf("%s has the capabilities %s of %s", service, got, field)
			}
		}
	}
}

// checkRoots asks the kernel how the roots are mounted, and tries to write.
func checkRoots(t *testing.T, s *services) {
	for _, service := range []string{"controlplane", "upstream"} {
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.look(t, service).State.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^\d+ \d+ \S+ \S+ / ro[, ]`).Match(mounts) {
			t.Errorf("the root of %s can be written:\n%s", service, mounts)
		}
	}
	for path, writable := range map[string]bool{
		"/new": false, "/usr/local/bin/weir": false, "/tokens/new": false, "/examples/new": false,
		"/var/lib/weir/new": true,
	} {
		said, err := s.try(t.Context(), "docker compose exec -T controlplane sh -c 'echo >"+path+"'")
		if (err == nil) != writable || !writable && !strings.Contains(said, "Read-only file system") {
			t.Errorf("the control plane writes %s: %v %s", path, err, said)
		}
	}
	s.run(t, "docker compose exec -T controlplane rm /var/lib/weir/new")
}

// checkPorts compares the ports that the kernel knows with the ports that docker-compose.yml names:
// on this machine, whose network is the test's own, and in each container.
func checkPorts(t *testing.T, s *services) {
	named := []string{}
	for _, line := range regexp.MustCompile(`(?m)^    ports: \[(.*)\]$`).FindAllStringSubmatch(readFile(t, "docker-compose.yml"), -1) {
		for _, m := range regexp.MustCompile(`"(?:([0-9.]+):)?(\d+):\d+"`).FindAllStringSubmatch(line[1], -1) {
			if m[1] == "" {
				named = append(named, "0.0.0.0:"+m[2], "[::]:"+m[2])
			} else {
				named = append(named, m[1]+":"+m[2])
			}
		}
	}
	slices.Sort(named)
	if want := []string{"0.0.0.0:10000", "127.0.0.1:8080", "127.0.0.1:9901", "[::]:10000"}; !slices.Equal(named, want) {
		t.Errorf("docker-compose.yml opens %v, its comment says %v", named, want)
	}
	if open := openPorts(t, os.Getpid()); !slices.Equal(open, named) {
		t.Errorf("open on this machine: %v, want %v", open, named)
	}
	for service, want := range map[string][]string{
		"controlplane": {"8080"}, "redis": {"6379"}, "envoy": {"10000", "9901"}, "upstream": {"8081"},
	} {
		var open []string
		for _, address := range openPorts(t, s.look(t, service).State.Pid) {
			if !strings.HasPrefix(address, "127.0.0.11:") { // Docker's own name server.
				open = append(open, address[strings.LastIndex(address, ":")+1:])
			}
		}
		slices.Sort(open)
		if !slices.Equal(slices.Compact(open), want) {
			t.Errorf("open in the container of %s: %v, want %v", service, open, want)
		}
	}
}

// openPorts returns the addresses at which something listens in the network of a process, for TCP,
// and all bound addresses for UDP.
func openPorts(t *testing.T, pid int) (open []string) {
	t.Helper()
	const listening, unconnected = "0A", "07"
	states := map[string]string{"tcp": listening, "tcp6": listening, "udp": unconnected, "udp6": unconnected}
	for table, state := range states {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
			if fields := strings.Fields(line); fields[3] == state {
				open = append(open, readAddress(t, fields[1]))
			}
		}
	}
	slices.Sort(open)
	return open
}

// readAddress reads an address as the kernel prints it: words of four bytes, the last byte first.
func readAddress(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(host)
	if err != nil {
		t.Fatal(text, err)
	}
	for word := range slices.Chunk(bytes, 4) {
		slices.Reverse(word)
	}
	address, found := netip.AddrFromSlice(bytes)
	number, err := strconv.ParseUint(port, 16, 16)
	if !found || err != nil {
		t.Fatal(text, err)
	}
	return netip.AddrPortFrom(address, uint16(number)).String()
}
