// Package native tests promises of the native host alone: what becomes of a fault in the module's
// code, and what a new configuration leaves behind. `make test-native` runs it in full, and the
// end-to-end tests with the native host. It needs build/libweir.so, and the same host with faults
// on demand: build/faults/libweir.so and, with the sanitizer of undefined behaviour,
// build/sanitized/libweir.so.
package native

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	repository = "../.."
	workers    = 2
)

var (
	full     = flag.Bool("full", false, "make ten thousand faults and reloads; `make test` makes fewer")
	faulty   = flag.String("faulty", "build/faults/libweir.so", "the host that makes faults on demand")
	emulated = flag.Bool("emulated", false, "make few faults, and leave out the emulator's own memory")
)

// startEnvoy runs an Envoy with the native host that is beside the path wasm, and an upstream.
func startEnvoy(t *testing.T, wasm, plugin string, change func(*stack.EnvoyOptions)) *stack.Envoy {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(repository, "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := stack.StartUpstream(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	o := stack.EnvoyOptions{
		Binary: os.Getenv("WEIR_ENVOY"), // of another version, or for another machine
		Config: string(config), Wasm: filepath.Join(repository, wasm), FilterHost: stack.NativeHost,
		PluginConfig: plugin, UpstreamPort: upstream.Port, Concurrency: workers, Dir: t.TempDir(),
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := stack.StartEnvoy(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

// metric returns the value of a metric of the filter, 0 if there is none.
func metric(t *testing.T, e *stack.Envoy, name string) int {
	t.Helper()
	content, err := e.Admin(t.Context(), "/stats?filter=^wasmcustom.weir."+name+"$")
	if err != nil {
		t.Fatal(err)
	}
	_, value, found := strings.Cut(strings.TrimSpace(string(content)), ": ")
	if !found {
		return 0
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// send sends a request, and returns the status and the field RateLimit of the answer.
func send(client *http.Client, e *stack.Envoy, header ...string) (status int, limit string, err error) {
	r, err := http.NewRequest(http.MethodGet, e.URL()+"/", nil)
	if err != nil {
		return 0, "", err
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, "", err
	}
	return answer.StatusCode, answer.Header.Get("Ratelimit"), nil
}

// residentMemory returns the memory of a process that is in use, in bytes.
func residentMemory(t *testing.T, pid int) int {
	t.Helper()
	pages, err := strconv.Atoi(strings.Fields(readProcess(t, pid, "statm"))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// count returns the number of entries in a folder of a process in /proc.
func count(t *testing.T, pid int, folder string) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, folder))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// readProcess returns a file of a process in /proc.
func readProcess(t *testing.T, pid int, name string) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
