package e2e

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

var examples = flag.Int("examples", 20,
	"number of requests that Schemathesis makes up for an operation; `make test-native` sets it")

// Whatever a client sends that the description allows, and much that it does not: the control plane
// never fails, and every answer has a status, headers, a media type and a body that the description
// names. Schemathesis makes the requests up.
func TestTheControlPlaneIsAsItsDescriptionSays(t *testing.T) {
	t.Parallel()
	const document = `version: weir/v1
tiers: [free, premium]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: api, partition: [client_ip], limit: {quota: 100, window: 1m}}
`
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	schemathesis := filepath.Join(cache, "bin", "schemathesis")
	if err := stack.Executable(schemathesis); err != nil {
		t.Fatalf("Schemathesis is not installed (%v): run `make setup`", err)
	}
	config, err := filepath.Abs("testdata/schemathesis.toml")
	if err != nil {
		t.Fatal(err)
	}
	// Schemathesis takes 75 s for 20 examples and 180 s for 120 examples on a quiet machine, and
	// several times that on a busy machine. It takes longer than this only if it hangs.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	w, err := stack.StartControlPlane(ctx, stack.ControlPlaneOptions{
		Binary: controlPlanePath, DataDir: t.TempDir(), AdminToken: adminToken, NodeToken: nodeToken,
		Env: []string{"WEIR_API_RATE=0"}, // Requests are made up as fast as the machine can.
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	if a, err := w.Call(ctx, http.MethodPut, "/v1/policyset", []byte(document), "If-Match", `"0"`); err != nil || a.Status != http.StatusOK {
		t.Fatalf("%v: %d %s", err, a.Status, a.Body)
	}
	run := exec.CommandContext(ctx, schemathesis, "--config-file", config, "run", w.URL()+"/openapi.yaml",
		"--exclude-tag", "node",
		"--header", "Authorization: Bearer "+
			adminToken, "--seed", "1", "--max-examples", strconv.Itoa(*examples), "--workers", "1", "--no-color")
	run.Dir = t.TempDir() // for its files
	run.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "PYTHONDONTWRITEBYTECODE=1")
	output, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("schemathesis: %v\n%s", err, output)
	}
	t.Logf("%s", output)
}

// The commands of docs/integrate/api.md have the effects that the page names, one after the other,
// on an empty store.
func TestTheDocumentedCallsWork(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := stack.StartControlPlane(ctx, stack.ControlPlaneOptions{
		Binary: controlPlanePath, DataDir: t.TempDir(), AdminToken: adminToken, NodeToken: nodeToken,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	script := "set -euo pipefail\n"
	for _, b := range blocks(t, "docs/integrate/api.md") {
		if b.language == "bash" { // Blocks of sh are run against make run, each on its own.
			script += b.text
		}
	}
	run := exec.CommandContext(ctx, "bash", "-c", script)
	run.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "WEIR_URL="+w.URL(),
		"WEIR_TOKEN="+adminToken)
	output, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "quota: 80") ||
		!strings.Contains(string(output), "# comments stay") ||
		!strings.Contains(string(output), "back to version 1") || !strings.Contains(string(output), `"tier":"premium"`) {
		t.Errorf("%v\n%s", err, output)
	}
}
