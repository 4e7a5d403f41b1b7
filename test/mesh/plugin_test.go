package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// Istio's kinds for the host load the filter into a gateway, and a limit that `weir serve` leases
// holds.
func aGatewayIsLimited(t *testing.T, m *mesh) {
	for name, manifest := range map[string]func(plugin) string{
		"wasm-plugin": plugin.wasmPlugin, "traffic-extension": plugin.trafficExtension,
		"envoy-filter": func(p plugin) string { return p.envoyFilter(t) },
	} {
		if (name == "envoy-filter") != natively() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g := aGround(t, m, name)
			c := g.withControlPlane(leased("first", quota))
			g.store(manifest(plugin{name: "weir", pluginName: "weir"}))
			p := g.start()
			awaitNode(t, c, "router~10.9.9.9~gw-"+name)
			limits(t, p.url("/"), "first", quota)

			version, err := c.Apply(within(t), []byte(leased("second", quota/2)))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.AwaitApplied(within(t), version, g.gateway().node()); err != nil {
				t.Fatal(err)
			}
			limits(t, p.url("/"), "second", quota/2)
			if log := p.Stderr.String(); strings.Contains(log, "rejected") {
				t.Errorf("Envoy refused something:\n%s", log)
			}
		})
	}
}

// withProbe returns a plugin configuration with an inline limit, and a second limit that has the
// name of its path. By it a test sees that the configuration is in force.
func withProbe(name string, quota int, probe string) string {
	return fmt.Sprintf("{policyset: {version: weir/v1, policies: [{name: %s, match: {paths: [/]}, partition: [], "+
		"limit: {quota: %d, window: 1h}, mode: local}, {name: %s, match: {paths: [/%[3]s]}, partition: [], "+
		"limit: {quota: 1000000, window: 1h}, mode: local}]}}", name, quota, probe)
}

func awaitProbe(t *testing.T, p *proxy, probe string) {
	t.Helper()
	awaitAnswer(t, "configuration "+probe, p.url("/"+probe), func(a answer) bool {
		return strings.Contains(fmt.Sprint(a.header["Ratelimit-Policy"]), probe)
	})
}

// In Wasm an edit makes new virtual machines, because Istio puts the version of the object into
// their environment; a new module does, too. Used tokens stay used.
func editsKeepBuckets(t *testing.T, m *mesh) {
	g := aGround(t, m, "edits")
	weir := plugin{name: "weir", pluginName: "weir", config: withProbe("kept", quota, "one")}
	g.store(weir.manifest(t))
	p := g.start()
	awaitProbe(t, p, "one")
	if got := counts(t, 40, p.url("/")); got[200] != 40 {
		t.Fatalf("before the edit: %v", got)
	}

	weir.config = withProbe("kept", quota, "two")
	g.store(weir.manifest(t))
	g.settle(p)
	awaitProbe(t, p, "two")
	if got := counts(t, 40, p.url("/")); got[200] != 40 {
		t.Fatalf("after the edit: %v", got)
	}

	weir.url, weir.config = "file://"+anotherBuild(t), withProbe("kept", quota, "three")
	g.store(weir.manifest(t))
	g.settle(p)
	awaitProbe(t, p, "three")
	if got := counts(t, 40, p.url("/")); got[200] != 20 || got[429] != 20 {
		t.Errorf("after the upgrade: %v, want the 20 that are left", got)
	}
}

// An Envoy keeps the configuration from istiod. While istiod is away, limits hold and Weir's
// control plane changes them. Changes in Kubernetes arrive when istiod is back.
func limitsHoldWithoutIstiod(t *testing.T, m *mesh) {
	g := aGround(t, m, "without-istiod")
	c := g.withControlPlane(leased("first", quota))
	weir := plugin{name: "weir", pluginName: "weir"}
	g.store(weir.manifest(t))
	p := g.start()
	awaitNode(t, c, "router~10.9.9.9~gw-without-istiod")

	m.istiod.Stop(grace)
	limits(t, p.url("/"), "first", quota)
	version, err := c.Apply(within(t), []byte(leased("second", quota/2)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitApplied(within(t), version, g.gateway().node()); err != nil {
		t.Fatal(err)
	}
	limits(t, p.url("/"), "second", quota/2)
	weir.config = withProbe("third", quota, "back")
	g.store(weir.manifest(t))

	m.startIstiod(t)
	g.settle(p)
	awaitProbe(t, p, "back")
	limits(t, p.url("/"), "third", quota)
}

// anotherBuild returns the module with a section that means nothing: other bytes, the same program.
// Natively another path is enough.
func anotherBuild(t *testing.T) string {
	t.Helper()
	code, err := os.ReadFile(module(t))
	if err != nil {
		t.Fatal(err)
	}
	if natively() {
		return written(t, code)
	}
	const name = "another build"
	code = append(code, 0, byte(len(name)+1), byte(len(name)))
	return written(t, append(code, name...))
}

// written puts bytes into a file.
func written(t *testing.T, code []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin.wasm")
	if err := os.WriteFile(path, code, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Envoy refuses a module that it cannot load, and goes on with its present module. An Envoy that
// starts with such a module answers 500 until a good module comes. failStrategy changes neither: it
// is for a module that ran and crashed.
func aModuleThatCannotBeLoaded(t *testing.T, m *mesh) {
	onlyIn(t, stack.WasmHost, "the next test is about the native host")
	broken := "file://" + written(t, []byte(strings.Repeat("this is no module", 300)))
	for _, strategy := range []string{"FAIL_OPEN", "FAIL_CLOSE"} {
		t.Run(strategy, func(t *testing.T) {
			g := aGround(t, m, "broken-"+strings.ToLower(strings.ReplaceAll(strategy, "_", "-")))
			good := plugin{name: "weir", pluginName: "weir", failStrategy: strategy, config: inline("good", quota)}
			bad := good
			bad.url = broken
			g.store(bad.manifest(t))
			p := g.run(t, g.gateway(), g.port)
			awaitRefusal(t, p, wasmRefusals, 0)
			awaitAnswer(t, "an answer", p.url("/"),
				func(a answer) bool { return a.status == http.StatusInternalServerError })

			g.store(good.manifest(t))
			g.settle(p)
			refused, err := p.count(wasmRefusals)
			if err != nil {
				t.Fatal(err)
			}
			g.store(bad.manifest(t))
			awaitRefusal(t, p, wasmRefusals, refused)
			limits(t, p.url("/"), "good", quota)
		})
	}
}

// Natively Envoy refuses the whole listener, and goes on with its present listener. An Envoy that
// starts with such a listener has none, until a module is there.
func aNativeHostThatIsMissing(t *testing.T, m *mesh) {
	onlyIn(t, stack.NativeHost, "the test before is about Wasm")
	g := aGround(t, m, "missing")
	good := plugin{name: "weir", pluginName: "weir", config: inline("good", quota)}
	bad := good
	bad.url = "file://" + filepath.Join(t.TempDir(), "libweir.so")
	g.store(bad.manifest(t))
	p := g.run(t, g.gateway(), g.port)
	awaitRefusal(t, p, listenerRefusals, 0)
	if _, err := ask(p.url("/")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a listener: %v, want a refused connection", err)
	}

	g.store(good.manifest(t))
	g.settle(p)
	refused, err := p.count(listenerRefusals)
	if err != nil {
		t.Fatal(err)
	}
	g.store(bad.manifest(t))
	awaitRefusal(t, p, listenerRefusals, refused)
	limits(t, p.url("/"), "good", quota)
}

// Counters of Envoy for configurations that it has refused.
const (
	wasmRefusals     = "^extension_config_discovery.*config_fail$"
	listenerRefusals = "^listener_manager.lds.update_rejected$"
)

// awaitRefusal waits until Envoy has refused more configurations than before.
func awaitRefusal(t *testing.T, p *proxy, counter string, before int) {
	t.Helper()
	err := p.AwaitReady(within(t), func(context.Context) error {
		n, err := p.count(counter)
		if err == nil && n <= before {
			err = fmt.Errorf("Envoy counts %d", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// count returns the value of the only counter that matches.
func (p *proxy) count(counter string) (int, error) {
	stats, err := p.ask("/stats?filter=" + counter)
	if err != nil {
		return 0, err
	}
	_, number, _ := strings.Cut(stats, ": ")
	return strconv.Atoi(strings.TrimSpace(number))
}

// Istio leaves vm_id empty, so all plugins of an Envoy share their data. Envoy's name of a plugin
// has the name of its manifest in it, which keeps two plugins apart that have no pluginName.
func twoPluginsWithoutANameOfTheirOwn(t *testing.T, m *mesh) {
	onlyIn(t, stack.WasmHost, "a dynamic module learns no other name than filter_name")
	g := aGround(t, m, "unnamed")
	g.store(plugin{name: "one", config: withProbe("same", quota, "one")}.manifest(t))
	g.store(plugin{name: "two", config: withProbe("same", quota, "two"), priority: 1}.manifest(t))
	p := g.start()
	awaitProbe(t, p, "one")
	awaitProbe(t, p, "two")
	limits(t, p.url("/"), "same", quota)
}

// Two plugins with one control plane each ask it for every request: a limit counts twice, whatever
// their names are. One plugin is enough, with policies that match the requests of both.
func twoPluginsOfOneControlPlaneCountTwice(t *testing.T, m *mesh) {
	g := aGround(t, m, "twice")
	c := g.withControlPlane(leased("shared", quota))
	g.store(plugin{name: "one", pluginName: "one"}.manifest(t))
	g.store(plugin{name: "two", pluginName: "two", priority: 1}.manifest(t))
	p := g.start()
	awaitNodes(t, c, "router~", 2)
	if got := counts(t, requests, p.url("/")); got[200] < quota/2 || got[200] > quota/2+1 {
		t.Errorf("%v, want half of %d", got, quota)
	}
}

// A plugin is in the proxies that its selector names, and in no other proxies.
func aPluginIsWhereItsSelectorSays(t *testing.T, m *mesh) {
	g := aGround(t, m, "selected")
	other := *g
	other.port = kubetest.FreePort(t)
	other.store(`
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: other, namespace: $NAMESPACE}
spec:
  selector: {app: other}
  servers: [{port: {number: $PORT, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other, namespace: $NAMESPACE}
spec:
  hosts: ["*"]
  gateways: [other]
  http: [{route: [{destination: {host: shop.example.internal, port: {number: 80}}}]}]
`)
	g.store(plugin{name: "weir", pluginName: "weir", config: inline("here", quota)}.manifest(t))
	p := g.start()
	// istiod knows the plugin now, so the first configuration of this Envoy is the last, too.
	q := g.run(t, workload{kind: "router", name: "gw-other", namespace: g.namespace, labels: "app: other",
		address: "10.9.9.10"}, other.port)
	q.settles(t, g.upstream)
	limits(t, p.url("/"), "here", quota)
	if got := counts(t, requests, q.url("/")); got[200] != requests {
		t.Errorf("the other gateway: %v, want no limit", got)
	}
}
