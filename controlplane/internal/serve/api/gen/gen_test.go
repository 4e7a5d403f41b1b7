package gen_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What is generated is what the description says now.
func TestGeneratedCodeIsFresh(t *testing.T) {
	fresh := filepath.Join(t.TempDir(), "server.go")
	if out, err := exec.Command("go", "tool", "oapi-codegen", "-config", "config.yaml", "-o", fresh,
		"../../../../../api/openapi.yaml").CombinedOutput(); err != nil {
		t.Fatalf("oapi-codegen: %v\n%s", err, out)
	}
	want, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("server.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("server.go is not what api/openapi.yaml, config.yaml and overlay.yaml give: run make generate")
	}
}
