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

// A cluster accepts each manifest of the page as it stands there.
func manifestsOfIstioAreAccepted(t *testing.T, m *mesh) {
	// kubetest applies as one manager, and so would replace the objects that it applied before.
	const deployments = "/apis/apps/v1/namespaces/istio-system/deployments"
	if status, answer, err := m.kubernetes.Call("POST", deployments, "application/yaml", installed); err != nil ||
		status != 201 {
		t.Fatal(status, answer, err)
	}
	accepts(t, m.kubernetes, istioPage, 7)
}

// The page's way to the first 429, with each of the two kinds. A ServiceEntry replaces the Service
// of the control plane, and a file replaces the image.
func istioPageLeadsToARefusal(t *testing.T, m *mesh) {
	for _, kind := range []string{"WasmPlugin", "TrafficExtension"} {
		t.Run(kind, func(t *testing.T) {
			g := &ground{mesh: m, t: t, namespace: "istio-system", port: kubetest.FreePort(t), upstream: upstream(t)}
			g.store(strings.Replace(gatewayManifests, "selector: {app: $NAMESPACE}",
				"selector: {istio: ingressgateway}", 1))
			c := controlPlane(t, policySet(t, istioPage))
			g.store(controlPlaneEntry, "$WEIR", strconv.Itoa(c.Port))
			var plugins []string
			for _, b := range pageBlocks(t, istioPage) {
				if strings.Contains(b, "kind: "+kind+"\nmetadata: {name: weir, namespace: istio-system}") &&
					!strings.Contains(b, "---") {
					plugins = append(plugins, strings.Replace(b, "oci://registry.example.com/weir-filter:VERSION",
						"file://$MODULE", 1))
				}
			}
			if len(plugins) != 1 {
				t.Fatalf("%s has %d plugins of kind %s", istioPage, len(plugins), kind)
			}
			g.store(plugins[0])
			w := g.gateway()
			w.labels = "istio: ingressgateway"
			p := g.run(t, w, g.port)
			g.settle(p)
			awaitNode(t, c, "router~10.9.9.9~gw-istio-system")
			limits(t, p.url("/"), "first", quota)
		})
	}
}
