//go:build pods

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/test/support/kubetest"
	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	// podImages is where make test-pods puts the images, with podTag as their version.
	podImages = repository + "/build/pod-images"
	podTag    = "test"
	podPort   = 8080
	// podPatience bounds the steps of Kubernetes on a busy machine: pull, start, roll out.
	podPatience = 3 * time.Minute
)

// pods are the chart's, in a Kubernetes with one node.
type pods struct {
	*kubetest.Node
	t        *testing.T
	replicas int
	// redis is beside the node; nil where the pods' store is on a volume.
	redis *redistest.Cluster
	// others is the buckets of earlier tests in each of its shards.
	others []map[string]bool
	// The tokens are the tokens that the chart has drawn.
	adminToken, nodeToken string

	// mu guards endpoints, the addresses of ready pods as the EndpointSlices have them. lowest is
	// the smallest number of them since a look.
	mu        sync.Mutex
	endpoints []string
	lowest    atomic.Int64
	// folder holds clusters.yaml, which Envoys read whenever it changes.
	folder string
}

// startNode starts a node for pods, without any.
func startNode(t *testing.T, replicas int) *pods {
	t.Helper()
	p := &pods{Node: kubetest.StartNode(t, podImages), t: t, replicas: replicas, folder: t.TempDir()}
	p.Apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: weir, labels: {pod-security.kubernetes.io/enforce: restricted}}
`)
	return p
}

// startPods installs the chart with two replicas, as docs/run/kubernetes.md does with a Redis.
func startPods(t *testing.T) *pods {
	t.Helper()
	p := startNode(t, 2)
	p.redis = redistest.StartCluster(t, 3, false, "--cluster-require-full-coverage", "no", "--bind", "127.0.0.1",
		p.Host, "--protected-mode", "no", "--cluster-announce-ip", p.Host)
	p.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: weir-redis, namespace: weir}
stringData: {url: %q}
`, strings.ReplaceAll(p.redis.URL(), "127.0.0.1", p.Host)))
	p.install("redis.existingSecret=weir-redis", fmt.Sprint("replicas=", p.replicas))
	return p
}

// install installs the chart and waits for its pods.
func (p *pods) install(values ...string) {
	p.t.Helper()
	values = append(values, "image.repository="+p.Images+"/weir", "image.tag="+podTag)
	helm := exec.Command(kubetest.Program(p.t, "helm"), "install", "weir", repository+"/deploy/helm/weir",
		"--namespace", "weir", "--set", strings.Join(values, ","))
	helm.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig, "HOME="+p.t.TempDir())
	if output, err := helm.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, output)
	}
	p.t.Cleanup(p.show)
	p.follow()
	p.awaitRollout()
	var secret struct {
		Data struct {
			Admin []byte `json:"admin-token"`
			Node  []byte `json:"node-token"`
		} `json:"data"`
	}
	p.read("/api/v1/namespaces/weir/secrets/weir-tokens", &secret)
	p.adminToken, p.nodeToken = string(secret.Data.Admin), string(secret.Data.Node)
}

// show prints the events of the pods, if the test has failed.
func (p *pods) show() {
	if !p.t.Failed() {
		return
	}
	var events struct {
		Items []struct{ Reason, Message string }
	}
	p.read("/api/v1/events", &events)
	for _, e := range events.Items[max(0, len(events.Items)-30):] {
		p.t.Logf("event %s: %s", e.Reason, e.Message)
	}
	files, _ := filepath.Glob("/var/log/pods/*/*/*.log")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		p.t.Logf("%s:\n%s", file, text[max(0, len(text)-4000):])
	}
}

// read asks the API for an object.
func (p *pods) read(path string, into any) {
	p.t.Helper()
	if err := p.ask(path, into); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pods) ask(path string, into any) error {
	status, answer, err := p.Call(http.MethodGet, path, "", "")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("GET %s: %d %s", path, status, answer)
	}
	return json.Unmarshal([]byte(answer), into)
}

// list returns the pods of the control plane.
func (p *pods) list(t *testing.T) []kubetest.Pod {
	t.Helper()
	return p.Pods(t, "weir", "")
}

// follow keeps clusters.yaml as the EndpointSlices of the Service are, until the test ends.
func (p *pods) follow() {
	p.t.Helper()
	p.publish(nil)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			now, err := p.sliced()
			if err != nil || slices.Equal(now, p.ready()) {
				continue // The API does not answer when the test ends.
			}
			p.publish(now)
		}
	}()
}

// sliced returns the addresses of ready endpoints.
func (p *pods) sliced() (ready []string, err error) {
	var list struct {
		Items []struct {
			Endpoints []struct {
				Addresses  []string
				Conditions struct{ Ready *bool }
			}
		}
	}
	const path = "/apis/discovery.k8s.io/v1/namespaces/weir/endpointslices"
	err = p.ask(path+"?labelSelector=kubernetes.io/service-name=weir", &list)
	for _, i := range list.Items {
		for _, e := range i.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready = append(ready, e.Addresses...)
			}
		}
	}
	slices.Sort(ready)
	return ready, err
}

// ready returns the addresses that Envoys know.
func (p *pods) ready() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints
}

// publish replaces clusters.yaml, whose name Envoys watch.
func (p *pods) publish(ready []string) {
	text, err := yaml.Marshal(map[string]any{"resources": []any{
		map[string]any{"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
			"cluster_name": "weir", "endpoints": assignment(ready)},
	}})
	if err == nil {
		err = os.WriteFile(filepath.Join(p.folder, "new.yaml"), text, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(p.folder, "new.yaml"), filepath.Join(p.folder, "clusters.yaml"))
	}
	if err != nil {
		p.t.Error(err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endpoints = ready
	p.lowest.Store(min(p.lowest.Load(), int64(len(ready))))
}

// assignment returns the endpoints of a cluster.
func assignment(addresses []string) []any {
	all := []any{}
	for _, a := range addresses {
		address := map[string]any{"socket_address": map[string]any{"address": a, "port_value": podPort}}
		all = append(all, map[string]any{"endpoint": map[string]any{"address": address}})
	}
	return []any{map[string]any{"lb_endpoints": all}}
}

// byAddresses makes envoy.yaml find the pods by their addresses, and is envoy.yaml otherwise: it
// looks itself which of them reach the store, and calls all if none does.
func (p *pods) byAddresses(t *testing.T) func(string) string {
	return func(config string) string {
		return withCluster(t, config, func(cluster map[string]any) {
			cluster["load_assignment"] = map[string]any{"cluster_name": "weir", "endpoints": assignment(p.ready())}
		})
	}
}

// bySlices makes envoy.yaml find the pods by the EndpointSlices, and call none beside.
func (p *pods) bySlices(t *testing.T) func(string) string {
	return func(config string) string {
		return withCluster(t, config, func(cluster map[string]any) {
			for _, name := range []string{"load_assignment", "health_checks",
				"close_connections_on_host_health_failure"} {
				if cluster[name] == nil {
					t.Fatalf("the cluster weir of envoy.yaml has no %s", name)
				}
				delete(cluster, name)
			}
			cluster["type"] = "EDS"
			source := map[string]any{"path": filepath.Join(p.folder, "clusters.yaml"),
				"watched_directory": map[string]any{"path": p.folder}}
			cluster["eds_cluster_config"] = map[string]any{
				"eds_config": map[string]any{"resource_api_version": "V3", "path_config_source": source}}
			cluster["common_lb_config"].(map[string]any)["healthy_panic_threshold"] = map[string]any{"value": 0}
		})
	}
}

// withCluster changes the cluster weir of a configuration.
func withCluster(t *testing.T, config string, change func(cluster map[string]any)) string {
	t.Helper()
	var all map[string]any
	if err := yaml.Unmarshal([]byte(config), &all); err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, c := range all["static_resources"].(map[string]any)["clusters"].([]any) {
		if c := c.(map[string]any); c["name"] == "weir" {
			change(c)
			changed++
		}
	}
	text, err := yaml.Marshal(all)
	if err != nil || changed != 1 {
		t.Fatalf("%d clusters are called weir, %v", changed, err)
	}
	return string(text)
}

// planes returns the control planes in the pods, ready or not, each by a way of its own, as kubectl
// port-forward gives.
func (p *pods) planes() (all []*stack.ControlPlane) {
	p.t.Helper()
	for _, pod := range p.list(p.t) {
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http",
			Host: fmt.Sprintf("%s:%d", pod.Address, podPort)})
		proxy.ErrorLog = log.New(io.Discard, "", 0) // Callers hear of pods that have ended.
		way := httptest.NewServer(proxy)
		p.t.Cleanup(way.Close)
		_, port, _ := strings.Cut(strings.TrimPrefix(way.URL, "http://"), ":")
		number, err := strconv.Atoi(port)
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, stack.ControlPlaneAt(number, p.adminToken))
	}
	if len(all) != p.replicas {
		p.t.Fatalf("there are %d pods", len(all))
	}
	return all
}

// eachPlane does something at each pod in turn.
func (p *pods) eachPlane(w *world, do func()) {
	before := w.controlPlane
	for _, plane := range p.planes() {
		w.controlPlane = plane
		do()
	}
	w.controlPlane = before
}

// awaitProbe waits until each pod answers a path with a status.
func (p *pods) awaitProbe(t *testing.T, path string, status int) {
	t.Helper()
	for _, plane := range p.planes() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := stack.Await(ctx, path, func(ctx context.Context) error {
			a, err := plane.Call(ctx, http.MethodGet, path, nil)
			if err == nil && a.Status != status {
				err = fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return err
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// setReadinessProbe changes the path that kubelet asks, and waits for the new pods.
func (p *pods) setReadinessProbe(t *testing.T, path string) {
	t.Helper()
	body := fmt.Sprintf(`{"spec": {"template": {"spec": {"containers": [{"name": "weir", "readinessProbe": `+
		`{"httpGet": {"path": %q}}}]}}}}`, path)
	status, answer, err := p.Call(http.MethodPatch, "/apis/apps/v1/namespaces/weir/deployments/weir",
		"application/strategic-merge-patch+json", body)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	p.awaitRollout()
}

// awaitRollout waits until all pods are of the Deployment's newest form and ready, and Envoys know
// them alone.
func (p *pods) awaitRollout() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), podPatience)
	defer cancel()
	err := stack.Await(ctx, "the pods", func(context.Context) error {
		var d struct {
			Metadata struct{ Generation int }
			Status   struct {
				Observed  int `json:"observedGeneration"`
				Replicas  int
				Updated   int `json:"updatedReplicas"`
				Available int `json:"availableReplicas"`
			}
		}
		if err := p.ask("/apis/apps/v1/namespaces/weir/deployments/weir", &d); err != nil {
			return err
		}
		s, known, now := d.Status, p.ready(), []string(nil)
		for _, pod := range p.list(p.t) {
			now = append(now, pod.Address)
		}
		slices.Sort(now)
		if s.Observed < d.Metadata.Generation || s.Replicas != p.replicas || s.Updated != p.replicas ||
			s.Available != p.replicas || !slices.Equal(known, now) {
			return fmt.Errorf("%+v, pods at %v, endpoints %v", d, now, known)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// awaitPod waits until the only pod is as wanted, and Envoys know it alone.
func (p *pods) awaitPod(t *testing.T, what string, right func(kubetest.Pod) bool) (now kubetest.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), podPatience)
	defer cancel()
	err := stack.Await(ctx, what, func(context.Context) error {
		all, known := p.list(t), p.ready()
		if len(all) != 1 || !right(all[0]) || !slices.Equal(known, []string{all[0].Address}) {
			return fmt.Errorf("pods %+v, endpoints %v", all, known)
		}
		now = all[0]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// killProcess kills the only control plane, as a crash would. In its own pod it is the first
// process, which nothing inside can kill.
func killProcess(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, file := range files {
		words, _ := os.ReadFile(file) // It may have ended.
		if string(words) != "/usr/local/bin/weir\x00serve\x00" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		killed++
	}
	if killed != 1 {
		t.Fatalf("%d control planes were killed", killed)
	}
}
