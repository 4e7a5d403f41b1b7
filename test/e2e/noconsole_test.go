package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// A build without the console serves everything else, and tells callers of the console that it is
// missing.
func TestABuildWithoutTheConsoleSaysSo(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "weir")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags", "noconsole", "-o", binary, ".")
	build.Dir = repository
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("it does not build: %v\n%s", err, output)
	}
	c, err := stack.StartControlPlane(t.Context(), stack.ControlPlaneOptions{
		Binary: binary, DataDir: t.TempDir(), AdminToken: adminToken, NodeToken: nodeToken,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	for path, want := range map[string]int{
		"/console": http.StatusNotFound, "/console/index.js": http.StatusNotFound, "/v1/nodes": http.StatusOK,
	} {
		got, err := c.Call(t.Context(), http.MethodGet, path, nil)
		if err != nil || got.Status != want {
			t.Errorf("%s: %d, want %d (%v): %s", path, got.Status, want, err, got.Body)
		}
		if want == http.StatusNotFound && !strings.Contains(string(got.Body), "made with the tag noconsole") {
			t.Errorf("%s does not say why: %s", path, got.Body)
		}
	}
}
