//go:build pods

package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/tools/stack"
)

// clusterPatience bounds the steps of Kubernetes on a busy machine.
const clusterPatience = 3 * time.Minute

// A cluster is a Kubernetes with one node, on which Envoy Gateway runs. Its controller is a pod,
// which makes the pods of Envoys. The node has no addresses of Services and no name server, so the
// test answers questions for the names of two Services.
type cluster struct {
	*kubetest.Node
	t       *testing.T
	control *stack.ControlPlane
	// files is the URL of the folder build, for pods. sum is the checksum of the native host there.
	files, sum string
}

// The page's way to the first 429 in a cluster, with the page's own manifests: the control plane,
// Envoy Gateway's controller and Envoy are pods. Then the native host takes the filter's place.
func TestPodsUnderEnvoyGateway(t *testing.T) {
	c := startCluster(t)
	c.installGateway()
	c.installControlPlane()
	c.installShop()
	c.store(nil, gatewayPage(t, "Gateway"))
	c.store(nil, strings.Replace(gatewayPage(t, "EnvoyExtensionPolicy", "type: Image"),
		"registry.example.com/weir-filter:VERSION", "oci://"+c.Images+"/weir-filter:test", 1))
	c.storeProxy(gatewayPage(t, "EnvoyProxy"), nil)

	name, address := c.awaitPod("envoy-gateway-system", "gateway.envoyproxy.io/owning-gateway-name=shop")
	c.mustLimit(name, address, policySet(t, gatewayPagePath), "first", quota)

	c.storeProxy(gatewayPage(t, "EnvoyProxy"), nativeProxy(t, "Remote"))
	remove(t, c.Server, gatewayPage(t, "EnvoyExtensionPolicy", "type: Image"))
	c.store(nil, nativeBlock(t, "kind: EnvoyExtensionPolicy"))
	c.awaitNative(address)
	c.mustLimit(name, address, leased("second", quota/2), "second", quota/2)
}

// startCluster starts the node, its name server and its server of files.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/usr/local/bin/envoy": envoy}
	for _, library := range libraries(t, envoy) {
		files[library] = library
	}
	c := &cluster{t: t, Node: kubetest.StartNode(t, repository+"/build/pod-images",
		kubetest.Image{Name: "envoy:1", Files: files},
		kubetest.Image{Name: "envoy-gateway:1",
			Files: map[string]string{"/usr/local/bin/envoy-gateway": kubetest.Program(t, "envoy-gateway")}})}
	t.Cleanup(c.show)
	const built = repository + "/build"
	native, err := os.ReadFile(stack.NativeHost.File(built + "/weir.wasm"))
	if err != nil {
		t.Fatalf("%v: run `make native`", err)
	}
	c.files = "http://" + c.serve(http.FileServer(http.Dir(built)))
	c.sum = strings.TrimPrefix(digestOf(native), "sha256:")
	for _, namespace := range []string{"weir", "envoy-gateway-system"} {
		c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	return c
}

// libraries returns the files that the loader of programs reads for a program.
func libraries(t *testing.T, program string) []string {
	t.Helper()
	output, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`/\S+`).FindAllString(string(output), -1)
}

// serve runs a server for pods, and returns its address.
func (c *cluster) serve(handler http.Handler) string {
	c.t.Helper()
	l, err := net.Listen("tcp", c.Host+":0")
	if err != nil {
		c.t.Fatal(err)
	}
	s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Hour}
	go s.Serve(l)
	c.t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// store applies manifests after replacements of texts.
func (c *cluster) store(replacements []string, manifests string) {
	c.t.Helper()
	c.Apply(c.t, strings.NewReplacer(replacements...).Replace(manifests))
}

// controller is Envoy Gateway's controller. Its Helm chart has the same pod; here it has the
// network of the node, as the API of Kubernetes has no address for pods.
const controller = `
apiVersion: v1
kind: ConfigMap
metadata: {name: envoy-gateway-config, namespace: envoy-gateway-system}
data:
  envoy-gateway.yaml: |
    apiVersion: gateway.envoyproxy.io/v1alpha1
    kind: EnvoyGateway
    gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
    provider:
      type: Kubernetes
      kubernetes:
        leaderElection: {disable: true}
        proxyTopologyInjector: {disabled: true}
        shutdownManager: {image: "$IMAGES/envoy-gateway:1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
spec:
  selector: {matchLabels: {control-plane: envoy-gateway}}
  template:
    metadata: {labels: {control-plane: envoy-gateway}}
    spec:
      hostNetwork: true
      containers:
        - name: envoy-gateway
          image: $IMAGES/envoy-gateway:1
          command: [envoy-gateway]
          args: [server, --config-path=/config/envoy-gateway.yaml]
          env:
            - {name: ENVOY_GATEWAY_NAMESPACE, value: envoy-gateway-system}
            - {name: KUBECONFIG, value: /cluster/kubeconfig}
          readinessProbe: {httpGet: {path: /readyz, port: 8081}, periodSeconds: 2}
          volumeMounts:
            - {name: config, mountPath: /config}
            - {name: certs, mountPath: /certs}
            - {name: cluster, mountPath: /cluster}
            - {name: wasm, mountPath: /var/lib/eg/wasm}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - {name: config, configMap: {name: envoy-gateway-config}}
        - {name: certs, secret: {secretName: envoy-gateway}}
        - {name: cluster, secret: {secretName: cluster}}
        - {name: wasm, emptyDir: {}}
        - {name: tmp, emptyDir: {}}
`

// installGateway installs Envoy Gateway.
func (c *cluster) installGateway() {
	c.t.Helper()
	c.Apply(c.t, gatewayDefinitions(c.t))
	certificates := exec.Command(kubetest.Program(c.t, "envoy-gateway"), "certgen", "--disable-topology-injector")
	certificates.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "ENVOY_GATEWAY_NAMESPACE=envoy-gateway-system")
	if output, err := certificates.CombinedOutput(); err != nil {
		c.t.Fatalf("certgen: %v\n%s", err, output)
	}
	kubeconfig, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		c.t.Fatal(err)
	}
	c.Apply(c.t, string(encode(c.t, map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata":   map[string]any{"name": "cluster", "namespace": "envoy-gateway-system"},
		"stringData": map[string]any{"kubeconfig": string(kubeconfig)}})))
	c.store([]string{"$IMAGES", c.Images}, controller)
	c.awaitPod("envoy-gateway-system", "control-plane=envoy-gateway")
}

const tokens = `
{apiVersion: v1, kind: Secret, metadata: {name: weir, namespace: weir}, stringData: {admin: $ADMIN, node: $NODE}}
---
{apiVersion: v1, kind: Secret, metadata: {name: weir, namespace: envoy-gateway-system}, stringData: {node: $NODE}}
`

// installControlPlane installs the page's control plane, and names for its pod and for the
// controller.
func (c *cluster) installControlPlane() {
	c.t.Helper()
	c.store([]string{"$ADMIN", adminToken, "$NODE", nodeToken}, tokens)
	c.store([]string{"registry.example.com/weir:VERSION", c.Images + "/weir:test"}, gatewayPage(c.t, "Deployment"))
	_, address := c.awaitPod("weir", "app=weir")
	c.answerNames(map[string]string{"weir.weir.svc.cluster.local.": address,
		"envoy-gateway.envoy-gateway-system.svc.cluster.local.": c.Host})
	// Like kubectl port-forward.
	way := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address + ":8080"})
	way.ErrorLog = log.New(io.Discard, "", 0)
	server := httptest.NewServer(way)
	c.t.Cleanup(server.Close)
	port, err := strconv.Atoi(server.URL[strings.LastIndex(server.URL, ":")+1:])
	if err != nil {
		c.t.Fatal(err)
	}
	c.control = stack.ControlPlaneAt(port, adminToken)
}

// answerNames runs a name server for pods.
func (c *cluster) answerNames(addresses map[string]string) {
	c.t.Helper()
	conn, err := net.ListenPacket("udp4", c.Host+":53")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	go func() {
		for packet := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			answer := dnsmessage.Message{Questions: m.Questions, Header: dnsmessage.Header{ID: m.ID, Response: true,
				RecursionDesired: m.RecursionDesired, RecursionAvailable: true}}
			address, known := addresses[strings.ToLower(q.Name.String())]
			if !known {
				answer.RCode = dnsmessage.RCodeNameError
			} else if q.Type == dnsmessage.TypeA {
				answer.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 5},
					Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())}}}
			}
			if text, err := answer.Pack(); err == nil {
				_, _ = conn.WriteTo(text, from)
			}
		}
	}()
}

// shop is a Service whose only endpoint is a server of the test.
const shop = `
{apiVersion: v1, kind: Service, metadata: {name: shop, namespace: default}, spec: {ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop, namespace: default, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: $PORT}]
endpoints: [{addresses: [$HOST], conditions: {ready: true}}]
`

func (c *cluster) installShop() {
	c.t.Helper()
	_, port, _ := strings.Cut(c.serve(http.HandlerFunc(stack.Echo)), ":")
	c.store([]string{"$HOST", c.Host, "$PORT", port}, shop)
}

// storeProxy stores the page's EnvoyProxy and GatewayClass. Envoy is the image of the test, and
// asks the test for names.
func (c *cluster) storeProxy(page string, native map[string]any) {
	c.t.Helper()
	objects, err := kubetest.Parse(page)
	if err != nil {
		c.t.Fatal(err)
	}
	if native != nil {
		objects[0] = native
	}
	merge(objects[0], map[string]any{"spec": map[string]any{"provider": map[string]any{"kubernetes": map[string]any{
		"envoyDeployment": map[string]any{
			"container": map[string]any{"image": c.Images + "/envoy:1"},
			"patch": map[string]any{"type": "StrategicMerge", "value": map[string]any{"spec": map[string]any{
				"template": map[string]any{"spec": map[string]any{"dnsPolicy": "None",
					"dnsConfig": map[string]any{"nameservers": []any{c.Host}}}}}}},
		},
		"envoyService": map[string]any{"type": "ClusterIP"},
	}}}})
	for _, o := range objects {
		c.store([]string{"https://files.example.com", c.files, strings.Repeat("0", 64), c.sum}, string(encode(c.t, o)))
	}
}

// awaitPod waits until the only pod with a label is ready, and returns its name and address.
func (c *cluster) awaitPod(namespace, label string) (name, address string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), clusterPatience)
	defer cancel()
	err := stack.Await(ctx, "the pod "+label, func(context.Context) error {
		pods := c.Pods(c.t, namespace, label)
		if len(pods) != 1 || !pods[0].Ready {
			return fmt.Errorf("there are %+v", pods)
		}
		name, address = pods[0].Name, pods[0].Address
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return name, address
}

// awaitNative waits until Envoy at an address serves with the native host. Its metrics are there
// when Envoy has loaded it for a listener, which then warms no more.
func (c *cluster) awaitNative(address string) {
	c.t.Helper()
	err := stack.Await(within(c.t), "the native host", func(context.Context) error {
		a, err := ask("http://" + address + ":19001/stats/prometheus")
		if err == nil && (!strings.Contains(a.body, "dynamicmodulescustom_weir_") ||
			!strings.Contains(a.body, "envoy_listener_manager_total_listeners_warming{} 0\n")) {
			err = errors.New("its metrics are missing, or a listener warms")
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// mustLimit applies a policy set, and checks that exactly `pass` requests pass as soon as the
// policy is in force.
func (c *cluster) mustLimit(node, address, policies, policy string, pass int) {
	c.t.Helper()
	version, err := c.control.Apply(within(c.t), []byte(policies))
	if err != nil {
		c.t.Fatal(err)
	}
	target := fmt.Sprintf("http://%s:10080/", address)
	awaitAnswer(c.t, policy, target, func(a answer) bool { return a.policy() == policy })
	if err := c.control.AwaitApplied(within(c.t), version, node); err != nil {
		c.t.Fatal(err)
	}
	// The first answer took a token.
	limits(c.t, target, policy, pass-1)
}

// show prints the last events and the logs of pods, if the test has failed.
func (c *cluster) show() {
	if !c.t.Failed() {
		return
	}
	events, _ := c.Get(c.t, "/api/v1/events")["items"].([]any)
	for _, e := range events[max(0, len(events)-25):] {
		c.t.Logf("event %v: %v", e.(map[string]any)["reason"], e.(map[string]any)["message"])
	}
	files, err := filepath.Glob("/var/log/pods/*/*/*.log")
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		c.t.Logf("%s:\n%s", file, text[max(0, len(text)-5000):])
	}
	if err != nil {
		c.t.Log(err)
	}
}
