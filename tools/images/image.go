package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The media types of the filter's second form.
const (
	wasmConfig  types.MediaType = "application/vnd.module.wasm.config.v1+json"
	wasmContent types.MediaType = "application/vnd.module.wasm.content.layer.v1+wasm"
)

// user is whom the control plane runs as: not root, and no user of the machine.
const user = 65532

// An entry is a file, or with a name that ends in a slash a folder, of a layer or an archive.
type entry struct {
	name    string
	content []byte
	mode    int64
	owner   int
}

// archive returns a tar file whose bytes depend on the entries alone.
func archive(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, ModTime: made(),
			Size: int64(len(e.content)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func layer(entries []entry) (v1.Layer, error) {
	content, err := archive(entries)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// authorities returns the certificate authorities that browsers trust, for a Redis with a public
// certificate.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// controlPlane returns the image of a binary for Linux. It has the binary, the authorities and a
// folder for the embedded store, and no shell.
func controlPlane(binary []byte, version, architecture string) (v1.Image, error) {
	files, err := layer([]entry{
		{"etc/", nil, 0o755, 0},
		{"etc/passwd", []byte("weir:x:65532:65532::/var/lib/weir:/sbin/nologin\n"), 0o644, 0},
		{"etc/ssl/", nil, 0o755, 0},
		{"etc/ssl/certs/", nil, 0o755, 0},
		{"etc/ssl/certs/ca-certificates.crt", authorities(), 0o644, 0},
		{"tmp/", nil, 0o1777, 0},
		{"usr/", nil, 0o755, 0},
		{"usr/local/", nil, 0o755, 0},
		{"usr/local/bin/", nil, 0o755, 0},
		{"usr/local/bin/weir", binary, 0o755, 0},
		{"var/", nil, 0o755, 0},
		{"var/lib/", nil, 0o755, 0},
		{"var/lib/weir/", nil, 0o700, user},
	})
	if err != nil {
		return nil, err
	}
	return assemble(files, &v1.ConfigFile{
		OS: "linux", Architecture: architecture, Created: v1.Time{Time: made()},
		Config: v1.Config{
			User: "65532:65532", WorkingDir: "/",
			// Orchestrators take an address away while the process ends.
			Env: []string{"PATH=/usr/local/bin", "WEIR_LISTEN=0.0.0.0:8080", "WEIR_DATA_DIR=/var/lib/weir",
				"WEIR_DRAIN=2s"},
			Entrypoint: []string{"/usr/local/bin/weir"}, Cmd: []string{"serve"},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}}, Volumes: map[string]struct{}{"/var/lib/weir": {}},
			Labels: labels("weir", version),
		},
	})
}

// filterImage returns the filter as a usual image: one layer with plugin.wasm.
func filterImage(module []byte, version string) (v1.Image, error) {
	files, err := layer([]entry{{"plugin.wasm", module, 0o644, 0}})
	if err != nil {
		return nil, err
	}
	// Tools that ask for an image of their platform use this image.
	return assemble(files, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Created: v1.Time{Time: made()},
		Config: v1.Config{Labels: labels("weir-filter", version)}})
}

// filterArtifact returns the form with the media types of WebAssembly: a layer with the
// configuration and a layer with the module itself.
func filterArtifact(module []byte, version string) (v1.Image, error) {
	settings := static.NewLayer([]byte(`{"type":"envoy_proxy","abiVersions":["v0-2-0"],"config":{}}`), wasmConfig)
	image, err := mutate.AppendLayers(base(), settings, static.NewLayer(module, wasmContent))
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(image, wasmConfig)
	return mutate.Annotations(image, labels("weir-filter", version)).(v1.Image), nil
}

func base() v1.Image { return mutate.MediaType(empty.Image, types.OCIManifestSchema1) }

func assemble(files v1.Layer, config *v1.ConfigFile) (v1.Image, error) {
	image := mutate.ConfigMediaType(base(), types.OCIConfigJSON)
	config.RootFS = v1.RootFS{Type: "layers"}
	image, err := mutate.ConfigFile(image, config)
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: files, History: v1.History{Created: config.Created}})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, config.Config.Labels).(v1.Image), nil
}

func labels(title, version string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    title,
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   "https://github.com/weir-proxy/weir",
	}
}
