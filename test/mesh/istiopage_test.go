package mesh

import (
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
)

const istioPage = "docs/run/istio.md"

// installed is a part of the Deployment that Istio's installation makes, to which the page adds.
const installed = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: istio-ingressgateway, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  template:
    metadata: {labels: {istio: ingressgateway}}
    spec: {containers: [{name: istio-proxy, image: auto, env: [{name: INSTALLED, value: "yes"}]}]}
`

// A cluster accepts each manifest of the page, and of the native host's page, as it stands there.
func manifestsOfIstioAreAccepted(t *testing.T, m *mesh) {
	// kubetest applies as one manager, and so would replace the objects that it applied before.
	install := func() {
		t.Helper()
		const deployments = "/apis/apps/v1/namespaces/istio-system/deployments"
		if status, answer, err := m.kubernetes.Call("POST", deployments, "application/yaml", installed); err != nil ||
			status != 201 {
			t.Fatal(status, answer, err)
		}
	}
	install()
	accepts(t, m.kubernetes, istioPage, 7)
	install()
	for _, kind := range []string{"Deployment", "EnvoyFilter"} {
		manifest := nativeBlock(t, "kind: "+kind+"\n")
		m.kubernetes.Apply(t, manifest)
		remove(t, m.kubernetes, manifest)
	}
}

// The page's way to the first 429, with each of the two kinds, or with the EnvoyFilter of the
// native host's page. A ServiceEntry replaces the Service of the control plane, and a file replaces
// the image.
func istioPageLeadsToARefusal(t *testing.T, m *mesh) {
	kinds := []string{"WasmPlugin", "TrafficExtension"}
	if natively() {
		kinds = []string{"EnvoyFilter"}
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			g := &ground{mesh: m, t: t, namespace: "istio-system", port: kubetest.FreePort(t), upstream: upstream(t)}
			g.store(strings.Replace(gatewayManifests, "selector: {app: $NAMESPACE}",
				"selector: {istio: ingressgateway}", 1))
			c := controlPlane(t, policySet(t, istioPage))
			g.store(controlPlaneEntry, "$WEIR", strconv.Itoa(c.Port))
			page := istioPage
			if natively() {
				page = nativePage
			}
			weir := onlyBlock(t, page, func(b string) bool {
				return strings.Contains(b, "kind: "+kind+"\nmetadata: {name: weir, namespace: istio-system}") &&
					!strings.Contains(b, "---")
			})
			g.store(weir, "oci://registry.example.com/weir-filter:VERSION", "file://"+module(t), nativePath, module(t))
			w := g.gateway()
			w.labels = "istio: ingressgateway"
			p := g.run(t, w, g.port)
			g.settle(p)
			awaitNode(t, c, "router~10.9.9.9~gw-istio-system")
			limits(t, p.url("/"), "first", quota)
		})
	}
}
