package kubetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Media types of the Open Container Initiative.
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// A registry serves images to pull: blobs and manifests by digest, and digests by the name and tag
// of an image.
type registry struct {
	blobs map[string][]byte
	tags  map[string]string
}

// A descriptor describes a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// serveImages runs a registry with the images of a layout, as `make images` writes it, with more
// images, and with pause:1, which every pod needs. It returns host:port.
func serveImages(t testing.TB, layout string, more ...Image) string {
	t.Helper()
	r := registry{map[string][]byte{}, map[string]string{}}
	r.read(t, layout)
	r.addPause(t)
	for _, image := range more {
		r.addImage(t, image)
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// read takes over the images of a layout.
func (r registry) read(t testing.TB, layout string) {
	t.Helper()
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	content, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err == nil {
		err = json.Unmarshal(content, &index)
	}
	if err != nil || len(index.Manifests) == 0 {
		t.Fatalf("cannot read images: %v; run make test-pods, which makes them", err)
	}
	for _, m := range index.Manifests {
		r.tags[m.Annotations["org.opencontainers.image.ref.name"]] = m.Digest
	}
	files, err := filepath.Glob(filepath.Join(layout, "blobs/sha256/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r.blobs["sha256:"+filepath.Base(file)] = content
	}
}

func (r registry) add(media string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	d := descriptor{MediaType: media, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: len(content)}
	r.blobs[d.Digest] = content
	return d
}

// An Image is made of files of this machine.
type Image struct {
	// Name is the image's name and tag, like envoy:1.
	Name string
	// Files are the files of the image: the path in it, and the path on this machine.
	Files map[string]string
	// Entrypoint is the program that the image runs; empty where pods name the program.
	Entrypoint []string
}

// addPause builds the program that a pod's containers share their network by.
func (r registry) addPause(t testing.TB) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "pause")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary,
		"github.com/weir-proxy/weir/test/support/kubetest/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	r.addImage(t, Image{"pause:1", map[string]string{"/pause": binary}, []string{"/pause"}})
}

// addImage adds an image with one layer, and with a folder for temporary files.
func (r registry) addImage(t testing.TB, image Image) {
	t.Helper()
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777})
	for _, path := range slices.Sorted(maps.Keys(image.Files)) {
		content, readErr := os.ReadFile(image.Files[path])
		if err = errors.Join(err, readErr); err != nil {
			break
		}
		err = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	layer := r.add(layerType, files.Bytes())
	config := r.add(configType, encode(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": image.Entrypoint, "User": "65535:65535",
			"Env": []string{"PATH=/usr/local/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	}))
	r.tags[image.Name] = r.add(manifestType, encode(t, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{layer},
	})).Digest
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// ServeHTTP answers GET and HEAD of /v2/, /v2/NAME/manifests/TAG-OR-DIGEST and
// /v2/NAME/blobs/DIGEST.
func (r registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := strings.TrimPrefix(q.URL.Path, "/v2/")
	name, rest, _ := strings.Cut(path, "/")
	kind, reference, _ := strings.Cut(rest, "/")
	digest := reference
	if tagged, found := r.tags[name+":"+reference]; found && kind == "manifests" {
		digest = tagged
	}
	content, found := r.blobs[digest]
	switch {
	case path == "":
		return
	case !found:
		http.NotFound(w, q)
		return
	case kind == "manifests":
		var manifest descriptor
		if err := json.Unmarshal(content, &manifest); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", manifest.MediaType)
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if q.Method == http.MethodGet {
		_, _ = w.Write(content) // A caller that has gone asks again.
	}
}
