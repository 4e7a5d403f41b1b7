package mesh

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// sidecarManifests make an Envoy the inbound proxy of the upstream. It has no iptables to catch its
// traffic, so the ports are said.
const sidecarManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAMESPACE}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: plain, namespace: $NAMESPACE}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: weir, namespace: $NAMESPACE}
spec:
  hosts: [weir.$NAMESPACE.svc.cluster.local, other.$NAMESPACE.svc.cluster.local]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: $OUTBOUND, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: $WEIR}}]
`

// sidecarHosts says which hosts the sidecar may see.
const sidecarHosts = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: shop, namespace: $NAMESPACE}
spec:
  workloadSelector: {labels: {app: $NAMESPACE}}
  ingress: [{port: {number: $PORT, protocol: HTTP, name: http}, bind: 127.0.0.1, captureMode: NONE, defaultEndpoint: "127.0.0.1:$UPSTREAM"}]
  egress: [{hosts: ["./$SEEN.$NAMESPACE.svc.cluster.local"]}]
`

// A sidecar limits the requests to its service. If a Sidecar resource hides the control plane's
// host, no request is limited and the log says why, once. As soon as the host is listed, limits
// hold.
func aSidecarThatDoesNotSeeTheControlPlane(t *testing.T, m *mesh) {
	g := &ground{mesh: m, t: t, namespace: "sidecar", port: kubetest.FreePort(t), upstream: upstream(t)}
	c := controlPlane(t, leased("inbound", quota))
	outbound := strconv.Itoa(kubetest.FreePort(t))
	g.store(sidecarManifests, "$OUTBOUND", outbound, "$WEIR", strconv.Itoa(c.Port))
	g.store(sidecarHosts, "$SEEN", "other")
	config := strings.NewReplacer("8080", outbound, "weir.weir", "weir.sidecar").Replace(connected)
	g.store(plugin{name: "weir", pluginName: "weir", config: config, match: ", match: [{mode: SERVER}]"}.manifest(t))
	p := g.run(t, workload{kind: "sidecar", name: "shop-1", namespace: g.namespace, labels: "app: sidecar",
		address: "10.9.9.8"}, g.port)
	g.settle(p)
	if got := counts(t, requests, p.url("/")); got[http.StatusOK] != requests {
		t.Errorf("without a control plane: %v", got)
	}
	const warning = "the control plane cannot be reached"
	err := stack.Await(within(t), "the warning", func(context.Context) error {
		if n := strings.Count(p.Stderr.String(), warning); n != 1 {
			return fmt.Errorf("it stands %d times in the log", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	g.store(sidecarHosts, "$SEEN", "weir")
	awaitNode(t, c, "sidecar~10.9.9.8~shop-1")
	limits(t, p.url("/"), "inbound", quota)
}
