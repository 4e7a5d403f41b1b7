//go:build emulated

package matrix

import (
	"archive/tar"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

const (
	// imageLayout is where make test-arm64 puts the images, as `make images` makes them, with test
	// as their version.
	imageLayout = repository + "/build/arm64-images"
	// libraries has the C library of arm64, and the libraries that Envoy loads beside it.
	libraries = "/usr/aarch64-linux-gnu"
)

// The newest Envoy for arm64 runs the filter of all others, or natively the host for arm64, with
// the control plane of the image for arm64. qemu runs both.
func TestOnArm64TheFilterRuns(t *testing.T) {
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	envoy := emulate(t, filepath.Join(cache, "bin", "envoy-arm64"))
	versions := pinned(t)
	newest := versions[len(versions)-1]
	said, err := exec.Command(envoy, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(said), "/"+newest+"/") {
		t.Fatalf("cannot run Envoy %s for arm64: %v\n%s\nrun tools/setup.sh envoy arm64", newest, err, said)
	}
	o := target{version: newest, envoy: envoy, weir: emulate(t, unpackBinary(t)), emulated: true}
	if runsNatively(t) {
		o.filter = repository + "/build/arm64/libweir.so"
	}
	runChecks(t, o)
	if *write && !t.Failed() && !runsNatively(t) {
		writeTable(t, tables(t)[1])
	}
}

// The command line of the image for arm64 says the same as the one for this machine.
func TestOnArm64TheCommandLineRuns(t *testing.T) {
	arm64 := emulate(t, unpackBinary(t))
	said, err := exec.Command(arm64, "version").CombinedOutput()
	if err != nil || !strings.Contains(string(said), "test") {
		t.Errorf("weir version for arm64 says %q, %v; its image is of the version test", said, err)
	}
	examples, err := filepath.Glob(repository + "/examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatal("no examples:", err)
	}
	for _, example := range examples {
		want, wantErr := exec.Command(repository+"/build/weir", "check", example).CombinedOutput()
		got, err := exec.Command(arm64, "check", example).CombinedOutput()
		if string(got) != string(want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("weir check %s for arm64: %v\n%s\nwant %v\n%s", example, err, got, wantErr, want)
		}
	}
}

// emulate returns a script that runs a binary for arm64.
func emulate(t *testing.T, binary string) string {
	t.Helper()
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatalf("%s: %v; run make test-arm64", binary, err)
	}
	file.Close()
	if file.Machine != elf.EM_AARCH64 {
		t.Fatalf("%s is for %v, not for arm64", binary, file.Machine)
	}
	binary, err = filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), filepath.Base(binary))
	text := fmt.Sprintf("#!/bin/sh\nexec qemu-aarch64-static -L %s '%s' \"$@\"\n", libraries, binary)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// A blob is a descriptor of an OCI layout, with the parts of an index and a manifest that the test
// reads.
type blob struct {
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    struct {
		Architecture string `json:"architecture"`
	} `json:"platform"`
	Manifests []blob `json:"manifests"`
	Layers    []blob `json:"layers"`
}

// unpackBinary returns the control plane's binary out of its image for arm64.
func unpackBinary(t *testing.T) string {
	t.Helper()
	index := readBlob(t, filepath.Join(imageLayout, "index.json"))
	for _, image := range index.Manifests {
		if image.Annotations["org.opencontainers.image.ref.name"] != "weir:test" {
			continue
		}
		for _, m := range readBlob(t, image.path()).Manifests {
			if m.Platform.Architecture == "arm64" {
				return unpackFile(t, readBlob(t, m.path()).Layers, "usr/local/bin/weir")
			}
		}
	}
	t.Fatalf("%s has no image weir:test for arm64; run make test-arm64", imageLayout)
	return ""
}

func (b blob) path() string {
	return filepath.Join(imageLayout, "blobs", strings.ReplaceAll(b.Digest, ":", "/"))
}

func readBlob(t *testing.T, path string) (b blob) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &b)
	}
	if err != nil {
		t.Fatalf("cannot read an image: %v; run make test-arm64", err)
	}
	return b
}

// unpackFile returns a file of these layers.
func unpackFile(t *testing.T, layers []blob, name string) string {
	t.Helper()
	for _, layer := range layers {
		file, err := os.Open(layer.path())
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		content, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewReader(content)
		for {
			header, err := archive.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if header.Name == name {
				return writeBinary(t, archive)
			}
		}
	}
	t.Fatalf("the image for arm64 has no %s", name)
	return ""
}

func writeBinary(t *testing.T, content io.Reader) string {
	t.Helper()
	binary, err := os.OpenFile(filepath.Join(t.TempDir(), "weir"), os.O_WRONLY|os.O_CREATE, 0o755)
	if err == nil {
		_, err = io.Copy(binary, content)
	}
	if err == nil {
		err = binary.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return binary.Name()
}
