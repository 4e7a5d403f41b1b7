package mesh

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// gatewayWorld is an Envoy Gateway on this machine, which takes its resources from a folder and
// runs the Envoy itself. It listens at ports that no setting changes, so there is one at a time.
type gatewayWorld struct {
	*proxy
	t        *testing.T
	dir      string
	upstream *stack.Upstream
	control  *stack.ControlPlane
	files    *httptest.Server
	image    image
	// source is the way of the filter into Envoy: HTTP or Image for Wasm, Local or Remote natively.
	source string
	// version is the version of Envoy.
	version string
}

// standalone has the objects that Envoy Gateway needs without Kubernetes: the service behind the
// route, its own certificate, and the address from which Envoy fetches the module. In a cluster
// that address is the name of a Service, and the certificate is a mounted file.
const standalone = `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: shop, namespace: default}
spec: {endpoints: [{ip: {address: 127.0.0.1, port: $UPSTREAM}}]}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyPatchPolicy
metadata: {name: standalone, namespace: default}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: shop}
  type: JSONPatch
  jsonPatches:
    - type: type.googleapis.com/envoy.config.cluster.v3.Cluster
      name: wasm_cluster
      operation: {op: replace, value: 127.0.0.1, path: /load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/address}
    - type: type.googleapis.com/envoy.config.cluster.v3.Cluster
      name: wasm_cluster
      operation: {op: replace, value: $DIR/config/certs/envoy/ca.crt, path: /transport_socket/typed_config/common_tls_context/validation_context/trusted_ca/filename}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: envoy, namespace: envoy-gateway-system}
data: {ca.crt: $CA, tls.crt: $CERTIFICATE, tls.key: $KEY}
`

const gatewaySettings = `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [$DIR/resources]}}
    infrastructure: {type: Host, host: {configHome: $DIR/config, dataHome: $DIR/data, stateHome: $DIR/state, runtimeDir: $DIR/run}}
extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true}
`

// usualSource returns the source of the filter in tests for which any source will do.
func usualSource() string {
	if natively() {
		return "Local"
	}
	return "HTTP"
}

// filterFrom returns the page's policy that puts the filter in.
func filterFrom(t *testing.T, source string) string {
	t.Helper()
	if natively() {
		return nativeBlock(t, "kind: EnvoyExtensionPolicy")
	}
	return gatewayPage(t, "EnvoyExtensionPolicy", "type: "+source)
}

// aGateway runs Envoy Gateway with the first manifests of its page; filter is the policy that puts
// the filter in.
func aGateway(t *testing.T, source, filter string) *gatewayWorld {
	t.Helper()
	w := &gatewayWorld{t: t, dir: t.TempDir(), upstream: upstream(t), control: controlPlane(t, leased("first", quota)),
		source: source, proxy: &proxy{port: kubetest.FreePort(t)}, image: serveImage(t, moduleBytes(t))}
	w.files = httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(module(t)))))
	t.Cleanup(w.files.Close)
	w.install(filter)
	var err error
	w.Process, err = stack.Start(stack.Command{Name: "envoy-gateway", Path: kubetest.Program(t, "envoy-gateway"),
		Dir:  w.dir,
		Env:  []string{"HOME=" + w.dir, "WEIR_NODE_TOKEN=" + nodeToken},
		Args: []string{"server", "--config-path", filepath.Join(w.dir, "gateway.yaml")}})
	if err != nil {
		t.Fatal(err)
	}
	w.admin = w.adminPort
	w.watch(t)
	w.settle(hasFilter("/default/weir/"))
	return w
}

// install writes the files with which Envoy Gateway starts.
func (w *gatewayWorld) install(filter string) {
	w.t.Helper()
	certificates := exec.Command(kubetest.Program(w.t, "envoy-gateway"), "certgen", "--local", "--config-home",
		filepath.Join(w.dir, "config"))
	certificates.Env = append(os.Environ(), "HOME="+w.dir)
	if output, err := certificates.CombinedOutput(); err != nil {
		w.t.Fatalf("certgen: %v\n%s", err, output)
	}
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		w.t.Fatal(err)
	}
	envoy, err = filepath.EvalSymlinks(envoy)
	if err != nil {
		w.t.Fatal(err)
	}
	w.version = envoyVersion(w.t, envoy)
	bin := filepath.Join(w.dir, "data/envoy-versions", w.version, "bin")
	for _, dir := range []string{bin, filepath.Join(w.dir, "resources")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := os.Link(envoy, filepath.Join(bin, "envoy")); err != nil {
		if err := os.Symlink(envoy, filepath.Join(bin, "envoy")); err != nil {
			w.t.Fatal(err)
		}
	}
	w.write("gateway.yaml", gatewaySettings)
	w.write("resources/standalone.yaml", w.standalone())
	w.write("resources/page.yaml", w.page())
	w.write("resources/filter.yaml", filter)
}

// standalone returns the objects that Envoy Gateway needs without Kubernetes. Natively it makes no
// cluster of modules.
func (w *gatewayWorld) standalone() string {
	if !natively() {
		return standalone
	}
	documents := strings.Split(standalone, "\n---\n")
	return strings.Join(slices.DeleteFunc(documents, func(d string) bool {
		return strings.Contains(d, "kind: EnvoyPatchPolicy")
	}), "\n---\n")
}

func envoyVersion(t *testing.T, envoy string) string {
	t.Helper()
	output, err := exec.Command(envoy, "--version").Output()
	found := regexp.MustCompile(`/(\d+\.\d+\.\d+)/`).FindSubmatch(output)
	if err != nil || found == nil {
		t.Fatalf("%s --version: %v %s", envoy, err, output)
	}
	return string(found[1])
}

// write fills a manifest in and puts it into a file, at once, as Envoy Gateway watches the folder.
func (w *gatewayWorld) write(name, text string) {
	w.t.Helper()
	encoded := func(name string) string {
		content, err := os.ReadFile(filepath.Join(w.dir, "config/certs/envoy", name))
		if err != nil {
			w.t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(content)
	}
	sum := sha256.Sum256(moduleBytes(w.t))
	text = strings.NewReplacer("$DIR", w.dir, "$UPSTREAM", strconv.Itoa(w.upstream.Port), "$CA", encoded("ca.crt"),
		"$CERTIFICATE", encoded("tls.crt"), "$KEY", encoded("tls.key"),
		// On this machine the addresses of the page's cluster differ.
		"weir.weir.svc.cluster.local, port_value: 8080", "127.0.0.1, port_value: "+strconv.Itoa(w.control.Port),
		"port: 80}]}", "port: "+strconv.Itoa(w.port)+"}]}",
		"{name: shop, port: 80}", "{group: gateway.envoyproxy.io, kind: Backend, name: shop}",
		"registry.example.com/weir-filter:VERSION", w.image.reference,
		"https://files.example.com", w.files.URL, strings.Repeat("0", 64), hex.EncodeToString(sum[:]),
		nativePath, module(w.t),
	).Replace(text)
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		w.t.Fatal(err)
	}
}

// page returns the page's EnvoyProxy and Gateway. The provider of the EnvoyProxy, which says how
// pods are made, is another.
func (w *gatewayWorld) page() string {
	w.t.Helper()
	manifests := gatewayPage(w.t, "EnvoyProxy") + "\n---\n" + gatewayPage(w.t, "Gateway")
	before, rest, found := strings.Cut(manifests, "  provider:\n")
	_, after, ended := strings.Cut(rest, "  bootstrap:\n")
	if !found || !ended {
		w.t.Fatal("the EnvoyProxy of the page has no provider before its bootstrap")
	}
	modules := ""
	if natively() {
		spec := nativeProxy(w.t, w.source)["spec"].(map[string]any)
		modules = "  dynamicModules: " + string(encode(w.t, spec["dynamicModules"])) + "\n"
	}
	return before + "  concurrency: 2\n" + modules + "  provider: {type: Host, host: {envoyVersion: " + w.version +
		"}}\n  bootstrap:\n" + after
}

const gatewayPagePath = "docs/run/envoy-gateway.md"

// gatewayPage returns the block of the page that begins with a kind of manifest, and has the text.
func gatewayPage(t *testing.T, kind string, texts ...string) string {
	t.Helper()
	return block(t, gatewayPagePath, "kind: "+kind, texts...)
}

// pageBlocks returns the YAML blocks of a page.
func pageBlocks(t *testing.T, page string) (blocks []string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(content), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// block returns the only YAML block of a page whose second line is first and that has all the
// texts.
func block(t *testing.T, page, first string, texts ...string) string {
	t.Helper()
	return onlyBlock(t, page, func(b string) bool {
		matches := strings.SplitN(b, "\n", 3)[1] == first
		for _, text := range texts {
			matches = matches && strings.Contains(b, text)
		}
		return matches
	})
}

// policySet returns the policy set of a page.
func policySet(t *testing.T, page string) string {
	t.Helper()
	return block(t, page, "policies:")
}

// The page's way to the first 429, with the module from a web server and out of an image; natively
// with a file and from a web server.
func TestEnvoyGatewayLimits(t *testing.T) {
	sources := []string{"HTTP", "Image"}
	if natively() {
		sources = []string{"Local", "Remote"}
	}
	for _, source := range sources {
		t.Run(source, func(t *testing.T) {
			w := aGateway(t, source, filterFrom(t, source))
			version, err := w.control.Apply(within(t), []byte(policySet(t, gatewayPagePath)))
			if err != nil {
				t.Fatal(err)
			}
			w.awaitVersion(version)
			limits(t, w.url("/"), "first", quota)
			prefix := "wasmcustom."
			if natively() {
				prefix = "dynamicmodulescustom." // Envoy Gateway has no field for it.
			}
			err = stack.Await(within(t), "the metric", func(context.Context) error {
				n, err := w.count("^" + prefix + "weir.requests.refused$")
				if err == nil && n != requests-quota {
					err = fmt.Errorf("it is %d, want %d", n, requests-quota)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// awaitVersion waits until a node has applied a version.
func (w *gatewayWorld) awaitVersion(version uint64) {
	w.t.Helper()
	err := stack.Await(within(w.t), "the policies", func(ctx context.Context) error {
		nodes, err := w.control.Nodes(ctx)
		if err == nil && !slices.ContainsFunc(nodes, func(n stack.Node) bool { return n.Applied >= version }) {
			err = fmt.Errorf("nodes: %+v", nodes)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// withInline returns the page's policy of the filter with another configuration.
func withInline(t *testing.T, config string) string {
	t.Helper()
	filter := filterFrom(t, usualSource())
	before, _, found := strings.Cut(filter, "      config:\n")
	if !found {
		t.Fatal("the page's policy has no config")
	}
	return before + "      config: " + config + "\n"
}

// An edit keeps the buckets. Another name of the policy is another vm_id in Wasm, whose buckets
// start full. Natively the buckets depend on filterName.
func TestEnvoyGatewayKeepsBuckets(t *testing.T) {
	w := aGateway(t, usualSource(), withInline(t, withProbe("kept", quota, "one")))
	w.settle(hasFilter("/default/weir/", `/one\"`))
	awaitProbe(t, w.proxy, "one")
	if got := counts(t, 60, w.url("/")); got[200] != 60 {
		t.Fatalf("before the edit: %v", got)
	}
	w.write("resources/filter.yaml", withInline(t, withProbe("kept", quota, "two")))
	w.settle(hasFilter("/default/weir/", `/two\"`))
	awaitProbe(t, w.proxy, "two")
	if got := counts(t, 60, w.url("/")); got[200] != 40 {
		t.Errorf("after the edit: %v, want the 40 that are left", got)
	}
	renamed := strings.Replace(withInline(t, withProbe("kept", quota, "three")),
		"metadata: {name: weir,", "metadata: {name: renamed,", 1)
	if err := os.Remove(filepath.Join(w.dir, "resources/filter.yaml")); err != nil {
		t.Fatal(err)
	}
	w.settle(hasNoFilter("envoyextensionpolicy"))
	w.write("resources/renamed.yaml", renamed)
	w.settle(hasFilter("/default/renamed/", `/three\"`))
	awaitProbe(t, w.proxy, "three")
	left := quota
	if natively() {
		left = 0
	}
	limits(t, w.url("/"), "kept", left)
}

// otherRoute is one whose module is not changed.
const otherRoute = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: other, namespace: default}
spec:
  parentRefs: [{name: shop}]
  rules:
    - matches: [{path: {type: PathPrefix, value: /other}}]
      backendRefs: [{name: shop, port: 80}]
`

// A module with another checksum never runs: its routes answer 500, or pass if failOpen says so.
func TestEnvoyGatewayRefusesAnotherModule(t *testing.T) {
	onlyIn(t, stack.WasmHost, "the next test is about the native host")
	filter := withInline(t, inline("loaded", quota))
	// Envoy Gateway makes the cluster of modules, which standalone changes, while there is a
	// module.
	other := strings.NewReplacer("metadata: {name: weir,", "metadata: {name: other,", "kind: HTTPRoute, name: shop",
		"kind: HTTPRoute, name: other")
	filter += "---" + otherRoute + "---\n" + other.Replace(filter)
	wrong := strings.Replace(filter, strings.Repeat("0", 64), strings.Repeat("1", 64), 1)
	w := aGateway(t, usualSource(), filter)
	awaitAnswer(t, "the filter", w.url("/"), func(a answer) bool { return a.policy() == "loaded" })
	w.write("resources/filter.yaml", wrong)
	awaitAnswer(t, "the refusal", w.url("/"), func(a answer) bool { return a.status == http.StatusInternalServerError })
	w.write("resources/filter.yaml",
		strings.Replace(wrong, "      rootID: weir\n", "      rootID: weir\n      failOpen: true\n", 1))
	awaitAnswer(t, "what passes", w.url("/"),
		func(a answer) bool { return a.status == http.StatusOK && a.policy() == "" })
	w.write("resources/filter.yaml", filter)
	awaitAnswer(t, "the filter", w.url("/"), func(a answer) bool { return a.policy() == "loaded" })
}

// Natively Envoy fetches the file. Requests pass without the filter if it has another checksum.
func TestEnvoyGatewayPassesWithoutItsNativeHost(t *testing.T) {
	onlyIn(t, stack.NativeHost, "the test before is about Wasm")
	w := aGateway(t, "Remote", withInline(t, inline("loaded", quota)))
	awaitAnswer(t, "the filter", w.url("/"), func(a answer) bool { return a.policy() == "loaded" })
	w.write("resources/page.yaml", strings.Replace(w.page(), strings.Repeat("0", 64), strings.Repeat("1", 64), 1))
	awaitAnswer(t, "an answer without the filter", w.url("/"),
		func(a answer) bool { return a.status == http.StatusOK && a.policy() == "" })
	w.write("resources/page.yaml", w.page())
	awaitAnswer(t, "the filter", w.url("/"), func(a answer) bool { return a.policy() == "loaded" })
}

// Envoy's own limit comes after the filter: requests that Weir refuses do not count there.
func TestEnvoyGatewayOwnLimits(t *testing.T) {
	w := aGateway(t, usualSource(), withInline(t, inline("weir", quota)))
	awaitAnswer(t, "the filter", w.url("/"), func(a answer) bool { return a.policy() == "weir" })
	own := gatewayPage(t, "BackendTrafficPolicy")
	w.write("resources/own.yaml", own)
	w.settle(hasFilter("envoy.filters.http.local_ratelimit"))
	statuses, byWeir := map[int]int{}, 0
	for range 200 {
		a, err := ask(w.url("/"))
		if err != nil {
			t.Fatal(err)
		}
		statuses[a.status]++
		if a.policy() == "weir" && a.status == 429 {
			byWeir++
		}
	}
	if statuses[429] != byWeir || byWeir < 100 {
		t.Errorf("%v, of which %d were refused by Weir: want all, as Envoy's own limit is larger", statuses, byWeir)
	}

	// Now Weir's limit is the larger limit.
	w.write("resources/own.yaml", strings.Replace(own, "requests: 120", "requests: 7", 1))
	w.write("resources/filter.yaml", withInline(t, inline("larger", 1000)))
	awaitAnswer(t, "Envoy's refusal", w.url("/"), func(a answer) bool {
		return a.status == 429 && strings.Contains(a.body, "local_rate_limited")
	})
}

// settle waits until the Envoy runs with a configuration for which the conditions hold.
func (w *gatewayWorld) settle(conditions ...condition) {
	w.t.Helper()
	w.settles(w.t, w.upstream, conditions...)
}

// adminPort reads the port that the last Envoy has written into a file. The folders of Envoys have
// the time of their start as their name.
func (w *gatewayWorld) adminPort() (int, error) {
	paths, err := filepath.Glob(filepath.Join(w.dir, "run/*/admin-address.txt"))
	if err != nil || len(paths) == 0 {
		return 0, errors.Join(err, errors.New("Envoy has not written the address of its administration"))
	}
	address, err := os.ReadFile(slices.Max(paths))
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(strings.TrimSpace(string(address)))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// gatewayDefinitions returns the schemas of Gateway API and Envoy Gateway, which come as a chart.
func gatewayDefinitions(t *testing.T) string {
	t.Helper()
	var complaints bytes.Buffer
	command := exec.CommandContext(within(t), kubetest.Program(t, "helm"), "template",
		sources(t, "gateway", "github.com/envoyproxy/gateway")+"/charts/gateway-crds-helm",
		"--set", "crds.gatewayAPI.enabled=true", "--set", "crds.envoyGateway.enabled=true")
	command.Stderr = &complaints
	text, err := command.Output()
	if err != nil {
		t.Fatalf("helm: %v: %s", err, complaints.String())
	}
	return string(text)
}

// A cluster accepts each manifest of the page, and of the native host's page.
func TestManifestsOfEnvoyGatewayAreAccepted(t *testing.T) {
	k := kubetest.Start(t)
	k.Apply(t, gatewayDefinitions(t))
	accepts(t, k, gatewayPagePath, 6)
	k.Apply(t, nativeBlock(t, "kind: EnvoyExtensionPolicy"))
	for _, source := range []string{"Local", "Remote"} {
		if err := k.TryApply(nativeProxy(t, source)); err != nil {
			t.Error(err)
		}
	}
}

// accepts applies all manifests of a page, which has at least `least` blocks.
func accepts(t *testing.T, k *kubetest.Server, page string, least int) {
	t.Helper()
	for _, namespace := range []string{"weir", "envoy-gateway-system", "shop"} {
		k.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	applied := 0
	for _, b := range pageBlocks(t, page) {
		objects, err := kubetest.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(objects) == 0 || objects[0].Kind() == "" {
			continue // A policy set.
		}
		k.Apply(t, b)
		// Some names occur twice on a page, and others in other tests.
		remove(t, k, b)
		applied++
	}
	if applied < least {
		t.Errorf("%s has only %d blocks of manifests", page, applied)
	}
}
