package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// A mesh is istiod with the API server of Kubernetes, which its tests share. There are no nodes and
// no controllers, so nothing that is stored ever runs: istiod reads it.
type mesh struct {
	kubernetes *kubetest.Server
	// grpc is the port at which istiod configures proxies, http the one at which it reports that it
	// is ready. Both stay over a restart.
	grpc, http int
	istiod     *stack.Process
	// config is the file with the settings of the mesh, which istiod reads again when it changes.
	config string
}

// One API server and one istiod serve all of these; each has a namespace of its own.
func TestIstio(t *testing.T) {
	m := startMesh(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *mesh)
	}{
		{"IstioPageLeadsToARefusal", istioPageLeadsToARefusal},
		{"ManifestsOfIstioAreAccepted", manifestsOfIstioAreAccepted},
		{"AGatewayIsLimited", aGatewayIsLimited},
		{"EditsKeepBuckets", editsKeepBuckets},
		{"LimitsHoldWithoutIstiod", limitsHoldWithoutIstiod},
		{"AModuleThatCannotBeLoaded", aModuleThatCannotBeLoaded},
		{"ANativeHostThatIsMissing", aNativeHostThatIsMissing},
		{"AModuleThatCrashes", aModuleThatCrashes},
		{"TwoPluginsWithoutANameOfTheirOwn", twoPluginsWithoutANameOfTheirOwn},
		{"TwoPluginsOfOneControlPlaneCountTwice", twoPluginsOfOneControlPlaneCountTwice},
		{"PluginsBeforeAndAfterJWT", pluginsBeforeAndAfterJWT},
		{"APluginIsWhereItsSelectorSays", aPluginIsWhereItsSelectorSays},
		{"ASidecarThatDoesNotSeeTheControlPlane", aSidecarThatDoesNotSeeTheControlPlane},
		{"AnImageFromARegistry", anImageFromARegistry},
		{"AnImageThatIsMissing", anImageThatIsMissing},
		{"AnAgentPassesTheNameOn", anAgentPassesTheNameOn},
		{"SpellingsOfAPath", spellingsOfAPath},
		{"MemoryOfASidecar", memoryOfASidecar},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, m) })
	}
}

// sources returns the folder of a module that one of the modules in tools/mesh pins.
func sources(t *testing.T, in, module string) string {
	t.Helper()
	command := exec.CommandContext(within(t), "go", "mod", "download", "-json", module)
	command.Dir = filepath.Join(repository, "tools/mesh", in)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go mod download %s: %v: %s", module, err, output)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(output, &found); err != nil || found.Dir == "" {
		t.Fatalf("go mod download %s names no folder: %v: %s", module, err, output)
	}
	return found.Dir
}

// settings are for Envoys that have no agent beside them, which alone could give them certificates.
const settings = "rootNamespace: istio-system\nenableTracing: false\ndefaultProviders: {}\nenableAutoMtls: false\n"

func startMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{kubernetes: kubetest.Start(t), grpc: kubetest.FreePort(t), http: kubetest.FreePort(t),
		config: filepath.Join(t.TempDir(), "mesh.yaml")}
	definitions, err := os.ReadFile(sources(t, "istio", "istio.io/istio") +
		"/manifests/charts/base/files/crd-all.gen.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m.kubernetes.Apply(t, string(definitions))
	m.kubernetes.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	if err := os.WriteFile(m.config, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	m.startIstiod(t)
	t.Cleanup(func() { m.istiod.Stop(grace); show(t, m.istiod) })
	return m
}

// startIstiod runs istiod until the mesh ends, and waits until it is ready.
func (m *mesh) startIstiod(t *testing.T) {
	t.Helper()
	at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	istiod, err := stack.Start(stack.Command{Name: "istiod", Path: kubetest.Program(t, "istiod"), Env: []string{
		"POD_NAMESPACE=istio-system", "POD_NAME=istiod-1", "ENABLE_CA_SERVER=false", "PILOT_CERT_PROVIDER=none",
		"PILOT_ENABLE_XDS_IDENTITY_CHECK=false",
		// These two filters exist in Istio's own build of Envoy alone.
		"PILOT_ENABLE_ALPN_FILTER=false", "PILOT_ENABLE_METADATA_EXCHANGE=false",
	}, Args: []string{"discovery", "--kubeconfig", m.kubernetes.Kubeconfig, "--registries", "Kubernetes",
		"--meshConfig", m.config, "--grpcAddr", at(m.grpc), "--secureGRPCAddr", "", "--httpsAddr", "", "--httpAddr",
		at(m.http), "--monitoringAddr", at(kubetest.FreePort(t)), "--ctrlz_port", strconv.Itoa(kubetest.FreePort(t))}})
	if err != nil {
		t.Fatal(err)
	}
	m.istiod = istiod
	err = istiod.AwaitReady(within(t), func(context.Context) error {
		a, err := ask("http://" + at(m.http) + "/ready")
		if err == nil && a.status != 200 {
			err = fmt.Errorf("it answers %d", a.status)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// store applies manifests, and removes them when the test ends. No controller would empty a
// namespace that goes, so these stay.
func store(t *testing.T, k *kubetest.Server, manifests string) {
	t.Helper()
	k.Apply(t, manifests)
	t.Cleanup(func() { remove(t, k, manifests) })
}

// remove takes the objects of manifests away. A missing object is no error.
func remove(t *testing.T, k *kubetest.Server, manifests string) {
	t.Helper()
	objects, err := kubetest.Parse(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Kind() == "Namespace" {
			continue
		}
		path, err := k.Path(o)
		if err != nil {
			t.Fatal(err)
		}
		status, answer, err := k.Call("DELETE", path, "", "")
		if err != nil || status/100 != 2 && status != 404 {
			t.Errorf("DELETE %s: %d %s %v", path, status, answer, err)
		}
	}
}

// A workload is the place of a proxy in the mesh.
type workload struct {
	// kind is router or sidecar.
	kind, name, namespace string
	// labels are the labels of its pod.
	labels string
	// address is one at which nothing else of the mesh is: istiod takes an endpoint there for the
	// proxy's own. Nothing listens there.
	address string
}

func (w workload) node() string {
	return fmt.Sprintf("%s~%s~%s.%s~%[4]s.svc.cluster.local", w.kind, w.address, w.name, w.namespace)
}

// bootstrap is the configuration with which an Envoy asks istiod for all other configuration.
const bootstrap = `
node:
  id: %s
  cluster: %s
  metadata: {NAMESPACE: %s, LABELS: {%s}, ISTIO_VERSION: 1.31.0, CLUSTER_ID: Kubernetes, INTERCEPTION_MODE: NONE}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}
dynamic_resources:
  lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
  ads_config:
    api_type: GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services: [{envoy_grpc: {cluster_name: xds-grpc}}]
static_resources:
  clusters:
    - name: xds-grpc
      type: STATIC
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      load_assignment:
        cluster_name: xds-grpc
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]
`

// run starts an Envoy of the workload, which listens at port as the mesh says.
func (m *mesh) run(t *testing.T, w workload, port int) *proxy {
	t.Helper()
	binary, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	admin := kubetest.FreePort(t)
	p := &proxy{port: port, admin: always(admin)}
	config := filepath.Join(t.TempDir(), "envoy.yaml")
	text := fmt.Sprintf(bootstrap, w.node(), w.name, w.namespace, w.labels, admin, m.grpc)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Process, err = stack.Start(stack.Command{Name: w.name, Path: binary,
		Env: []string{"WEIR_NODE_TOKEN=" + nodeToken, "WEIR_NODE_ID=" + w.node()},
		Args: []string{"--config-path", config, "--concurrency", "2", "--disable-hot-restart", "--drain-time-s", "1",
			"--log-level", "info"}})
	if err != nil {
		t.Fatal(err)
	}
	p.watch(t)
	return p
}

// ground is a namespace of a test, with a gateway before an upstream.
type ground struct {
	*mesh
	t         *testing.T
	namespace string
	port      int
	upstream  *stack.Upstream
	// plugins are the paths of the plugins in the API.
	plugins []string
}

// gatewayManifests route all that comes to a gateway to the upstream. Names of hosts are seen in
// this namespace alone.
const gatewayManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAMESPACE}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway, namespace: $NAMESPACE}
spec:
  selector: {app: $NAMESPACE}
  servers: [{port: {number: $PORT, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: $NAMESPACE}
spec:
  hosts: ["*"]
  gateways: [gateway]
  exportTo: ["."]
  http: [{route: [{destination: {host: shop.example.internal, port: {number: 80}}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: $NAMESPACE}
spec:
  hosts: [shop.example.internal]
  exportTo: ["."]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: $UPSTREAM}}]
`

// controlPlaneEntry makes the control plane a service of the mesh. In a cluster a Service does.
const controlPlaneEntry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: weir, namespace: $NAMESPACE}
spec:
  hosts: [weir.weir.svc.cluster.local]
  exportTo: ["."]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: $WEIR}}]
`

// connected is the plugin configuration with a control plane.
const connected = `{control_plane: {cluster: "outbound|8080||weir.weir.svc.cluster.local", token: {env: WEIR_NODE_TOKEN}, authority: weir}}`

// aGround makes a namespace with a gateway, whose Envoy is not started yet.
func aGround(t *testing.T, m *mesh, namespace string) *ground {
	t.Helper()
	g := &ground{mesh: m, t: t, namespace: namespace, port: kubetest.FreePort(t), upstream: upstream(t)}
	g.store(gatewayManifests)
	return g
}

// fill puts the values of the ground into manifests.
func (g *ground) fill(manifests string, more ...string) string {
	return strings.NewReplacer(append(more, "$NAMESPACE", g.namespace, "$PORT", strconv.Itoa(g.port),
		"$UPSTREAM", strconv.Itoa(g.upstream.Port), "$MODULE", module(g.t))...).Replace(manifests)
}

// store applies manifests until the test ends.
func (g *ground) store(manifests string, more ...string) {
	g.t.Helper()
	manifests = g.fill(manifests, more...)
	store(g.t, g.kubernetes, manifests)
	objects, err := kubetest.Parse(manifests)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, o := range objects {
		if !slices.Contains([]string{"WasmPlugin", "TrafficExtension", "EnvoyFilter"}, o.Kind()) {
			continue
		}
		path, err := g.kubernetes.Path(o)
		if err != nil {
			g.t.Fatal(err)
		}
		if !slices.Contains(g.plugins, path) {
			g.plugins = append(g.plugins, path)
		}
	}
}

// settle waits until the proxy runs with the present version of each plugin.
func (g *ground) settle(p *proxy, more ...condition) {
	g.t.Helper()
	for _, path := range g.plugins {
		o := g.kubernetes.Get(g.t, path)
		if o.Kind() == "EnvoyFilter" {
			more = append(more, filtersOf(g.t, o)...)
			continue
		}
		metadata := o["metadata"].(map[string]any)
		// istiod gives each plugin the version of its object.
		version := fmt.Sprintf(`"ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION":"%s"`, metadata["resourceVersion"])
		more = append(more, hasFilter("/"+o.Namespace()+"."+o.Name(), version))
	}
	p.settles(g.t, g.upstream, more...)
}

// gateway returns the workload that the ground's Gateway selects.
func (g *ground) gateway() workload {
	return workload{kind: "router", name: "gw-" + g.namespace, namespace: g.namespace, labels: "app: " + g.namespace,
		address: "10.9.9.9"}
}

// start runs the gateway's Envoy and waits until it serves with all plugins.
func (g *ground) start(more ...condition) *proxy {
	g.t.Helper()
	p := g.run(g.t, g.gateway(), g.port)
	g.settle(p, more...)
	return p
}

// withControlPlane runs `weir serve` and shows it to the proxies.
func (g *ground) withControlPlane(policies string) *stack.ControlPlane {
	g.t.Helper()
	c := controlPlane(g.t, policies)
	g.store(controlPlaneEntry, "$WEIR", strconv.Itoa(c.Port))
	return c
}

// A plugin has the fields that WasmPlugin and TrafficExtension share. Zero values are left out.
type plugin struct {
	name, pluginName, phase, failStrategy, url, config, match string
	priority                                                  int
}

const wasmFields = `{url: "%s", %sfailStrategy: %s, vmConfig: {env: [{name: WEIR_NODE_TOKEN, valueFrom: HOST}]}, pluginConfig: %s`

func (p plugin) wasm() string {
	named := ""
	if p.pluginName != "" {
		named = "pluginName: " + p.pluginName + ", "
	}
	return fmt.Sprintf(wasmFields, or(p.url, "file://$MODULE"), named, or(p.failStrategy, "FAIL_RELOAD"),
		or(p.config, connected))
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// place returns the fields for the plugin's proxies and for its place in the chain.
func (p plugin) place() string {
	return fmt.Sprintf("selector: {matchLabels: {app: $NAMESPACE}}, phase: %s, priority: %d%s", or(p.phase, "AUTHN"),
		p.priority, p.match)
}

// manifest returns the plugin as the host's first kind of manifests.
func (p plugin) manifest(t *testing.T) string {
	t.Helper()
	if natively() {
		return p.envoyFilter(t)
	}
	return p.wasmPlugin()
}

// wasmPlugin and trafficExtension are the kinds of manifests for Wasm.
func (p plugin) wasmPlugin() string {
	return "{apiVersion: extensions.istio.io/v1alpha1, kind: WasmPlugin, metadata: {name: " + p.name +
		", namespace: $NAMESPACE}, spec: " +
		p.wasm() + ", " + p.place() + "}}"
}

func (p plugin) trafficExtension() string {
	return "{apiVersion: extensions.istio.io/v1alpha1, kind: TrafficExtension, metadata: {name: " + p.name +
		", namespace: $NAMESPACE}, spec: {wasm: " +
		p.wasm() + "}, " + p.place() + "}}"
}
