package mesh

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// mostMemory is the most memory that the filter adds to a sidecar of two workers according to
// docs/run/istio.md, in megabytes.
const mostMemory = 80

// The filter has a virtual machine for each worker, and a virtual machine for Envoy's main thread.
func memoryOfASidecar(t *testing.T, m *mesh) {
	g := aGround(t, m, "memory")
	bare := g.start()
	before := resident(t, bare)
	bare.stopped = true
	bare.Stop(grace)

	c := g.withControlPlane(leased("first", 1_000_000))
	g.store(plugin{name: "weir", pluginName: "weir"}.manifest(t))
	p := g.start()
	awaitNode(t, c, "router~")
	counts(t, requests, p.url("/"))
	after := resident(t, p)
	t.Logf("an Envoy of two workers has %d MB without the filter, %d MB with it", before, after)
	if after-before > mostMemory {
		t.Errorf("the filter adds %d MB, want at most %d", after-before, mostMemory)
	}
}

// resident returns the memory of a process in megabytes.
func resident(t *testing.T, p *proxy) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	kilobytes, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes / 1024
}
