package mesh

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// An image is like the result of `docker build --target filter`: one layer, which holds the filter
// as plugin.wasm. A registry of the test serves it.
type image struct {
	// host is the registry, reference the image in it, digest the digest of its manifest.
	host, reference, digest string
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// serveImage runs a registry with one image.
func serveImage(t *testing.T, code []byte) image {
	t.Helper()
	layer, plain := layerOf(t, code)
	config := encode(t, map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{plain}},
	})
	const prefix = "application/vnd.docker."
	describe := func(media string, content []byte) map[string]any {
		return map[string]any{"mediaType": prefix + media, "size": len(content), "digest": digestOf(content)}
	}
	const manifestType = prefix + "distribution.manifest.v2+json"
	manifest := encode(t, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": describe("container.image.v1+json", config),
		"layers": []any{describe("image.rootfs.diff.tar.gzip", layer)},
	})
	files := map[string][]byte{"manifests/1": manifest, "manifests/" + digestOf(manifest): manifest,
		"blobs/" + digestOf(config): config, "blobs/" + digestOf(layer): layer}
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, found := files[strings.TrimPrefix(r.URL.Path, "/v2/weir-filter/")]
		switch {
		case r.URL.Path == "/v2/":
		case !found:
			http.NotFound(w, r)
		default:
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", manifestType)
			}
			w.Header().Set("Docker-Content-Digest", digestOf(content))
			http.ServeContent(w, r, "", noTime, bytes.NewReader(content))
		}
	}))
	t.Cleanup(registry.Close)
	host := strings.TrimPrefix(registry.URL, "http://")
	return image{host: host, reference: "oci://" + host + "/weir-filter:1", digest: digestOf(manifest)}
}

// layerOf packs a file as a layer, and returns the digest of the layer unpacked, too.
func layerOf(t *testing.T, code []byte) (layer []byte, digest string) {
	t.Helper()
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Name: "plugin.wasm", Mode: 0o644, Size: int64(len(code))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(code); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes(), digestOf(plain.Bytes())
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func moduleBytes(t *testing.T) []byte {
	t.Helper()
	code, err := os.ReadFile(module(t))
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// agentData is a folder that pilot-agent wants and does not make.
const agentData = "/var/lib/istio/data"

// runAgent starts pilot-agent, which starts an Envoy of the workload.
func (g *ground) runAgent(w workload, registry string) *proxy {
	g.t.Helper()
	t := g.t
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(agentData, 0o755); err != nil {
		t.Fatalf("pilot-agent needs this folder: %v", err)
	}
	dir := t.TempDir()
	admin := kubetest.FreePort(t)
	p := &proxy{port: g.port, admin: always(admin)}
	config := encode(t, map[string]any{
		"discoveryAddress": fmt.Sprintf("127.0.0.1:%d", g.grpc), "controlPlaneAuthPolicy": "NONE",
		"binaryPath": envoy, "configPath": dir + "/etc", "proxyAdminPort": admin, "statusPort": kubetest.FreePort(t),
		"proxyBootstrapTemplatePath": sources(t, "istio", "istio.io/istio") +
			"/tools/packaging/common/envoy_bootstrap.json", "concurrency": 2,
	})
	p.Process, err = stack.Start(stack.Command{Name: "pilot-agent", Path: kubetest.Program(t, "pilot-agent"), Dir: dir,
		Env: []string{
			"WEIR_NODE_TOKEN=" + nodeToken, "WEIR_NODE_ID=" + w.name, "POD_NAME=" + w.name,
			"POD_NAMESPACE=" + w.namespace, "INSTANCE_IP=" + w.address,
			"ISTIO_META_CLUSTER_ID=Kubernetes", `ISTIO_METAJSON_LABELS={"app":"` + w.namespace + `"}`,
			"ISTIO_META_ISTIO_VERSION=1.31.0", "CA_ADDR=127.0.0.1:1", "FILE_MOUNTED_CERTS=true",
			"WASM_INSECURE_REGISTRIES=" + registry, "PROXY_CONFIG=" + string(config),
		}, Args: []string{"proxy", "router", "--domain", w.namespace + ".svc.cluster.local", "--serviceCluster", w.name,
			"--meshConfig", g.config}})
	if err != nil {
		t.Fatal(err)
	}
	p.watch(t)
	return p
}

// Natively the agent starts Envoy without the node's name on the command line, and hands the
// variables of the pod on.
func anAgentPassesTheNameOn(t *testing.T, m *mesh) {
	onlyIn(t, stack.NativeHost, "in Wasm Envoy tells the filter the name")
	g := aGround(t, m, "agent")
	c := g.withControlPlane(leased("by-agent", quota))
	g.store(plugin{name: "weir", pluginName: "weir"}.manifest(t))
	p := g.runAgent(g.gateway(), "")
	g.settle(p)
	awaitNode(t, c, "gw-agent")
	limits(t, p.url("/"), "by-agent", quota)
}

const agentFetchesWasm = "pilot-agent fetches no dynamic modules"

// pilot-agent fetches the image, and Envoy gets the filter from it as a file.
func anImageFromARegistry(t *testing.T, m *mesh) {
	onlyIn(t, stack.WasmHost, agentFetchesWasm)
	g := aGround(t, m, "image")
	c := g.withControlPlane(leased("from-image", quota))
	image := serveImage(t, moduleBytes(t))
	g.store(plugin{name: "weir", pluginName: "weir", url: image.reference}.manifest(t))
	p := g.runAgent(g.gateway(), image.host)
	// The agent takes the version out of the plugin.
	p.settles(t, g.upstream, hasFilter("/image.weir", `"filename":"/`))
	awaitNode(t, c, "router~10.9.9.9~gw-image")
	limits(t, p.url("/"), "from-image", quota)
}

// If an image cannot be fetched, the agent replaces the filter by a filter that refuses everything,
// or, if failStrategy is FAIL_OPEN, by nothing.
func anImageThatIsMissing(t *testing.T, m *mesh) {
	onlyIn(t, stack.WasmHost, agentFetchesWasm)
	for strategy, want := range map[string]int{"FAIL_OPEN": http.StatusOK, "FAIL_CLOSE": http.StatusForbidden} {
		t.Run(strategy, func(t *testing.T) {
			g := aGround(t, m, "missing-"+strings.ToLower(strings.ReplaceAll(strategy, "_", "-")))
			image := serveImage(t, moduleBytes(t))
			missing := strings.TrimSuffix(image.reference, ":1") + ":2"
			g.store(plugin{name: "weir", pluginName: "weir", url: missing, failStrategy: strategy}.manifest(t))
			p := g.runAgent(g.gateway(), image.host)
			p.settles(t, g.upstream, hasFilter("/"+g.namespace+".weir", "envoy.extensions.filters.http.rbac.v3.RBAC"))
			if got := counts(t, 20, p.url("/")); got[want] != 20 {
				t.Errorf("%v, want %d", got, want)
			}
		})
	}
}
