package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// A Node runs the pods of a Kubernetes API: kubelet with containerd and runc, a scheduler and all
// controllers. It has no proxy for the addresses of Services and no name server.
type Node struct {
	*Server
	// Images is host:port of a registry, from which the node pulls.
	Images string
	// Host is the address of this machine for pods.
	Host string

	kubelet int
}

// The network of the pods.
const (
	bridge = "pods0"
	host   = "10.89.0.1"
)

// StartNode runs an API with a node until the test ends. The images in the folder, a layout as
// `make images` writes it, and more images can be pulled there. It must run in apart.sh: it adds a
// network.
func StartNode(t testing.TB, layout string, more ...Image) *Node {
	t.Helper()
	mustBeApart(t)
	n := &Node{Server: start(t), Images: serveImages(t, layout, more...), Host: host, kubelet: FreePort(t)}
	// In apart.sh it is in memory. Paths of sockets must be short, and the paths of tests' folders
	// are not.
	dir, err := os.MkdirTemp("/run", "node-")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		run(t, name, "--kubeconfig="+n.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
			"--secure-port="+strconv.Itoa(FreePort(t)))
	}
	for _, line := range []string{"link add " + bridge + " type bridge", "addr add " + host + "/24 dev " + bridge,
		"link set " + bridge + " up"} {
		command(t, "ip", strings.Fields(line)...)
	}
	t.Cleanup(func() { command(t, "ip", "link", "del", bridge) })
	socket := n.startContainerd(t, dir)
	n.startKubelet(t, dir, socket)
	return n
}

// mustBeApart fails the test where it would change the machine's own network.
func mustBeApart(t testing.TB) {
	t.Helper()
	if os.Getenv("WEIR_TESTS_APART") == "" {
		t.Fatal("this is the machine's own network: run it in test/support/kubetest/apart.sh, as make test-pods does")
	}
}

func command(t testing.TB, name string, arguments ...string) {
	t.Helper()
	if output, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, arguments, err, output)
	}
}

// startContainerd starts the runtime and returns its socket.
func (n *Node) startContainerd(t testing.TB, dir string) string {
	t.Helper()
	socket, networks := filepath.Join(dir, "containerd.sock"), filepath.Join(dir, "networks")
	if err := os.Mkdir(networks, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(networks, "pods.conflist"), fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [
{"type": "bridge", "bridge": %q, "ipam": {"type": "host-local", "dataDir": %q,
"ranges": [[{"subnet": "10.89.0.0/24", "rangeStart": "10.89.0.10"}]]}}]}`, bridge, filepath.Join(dir, "addresses")))
	// Copies of images take more room than layers over each other, and work on every file system.
	// Where the tests themselves are in a container, runc may not lower the score of processes.
	write(t, filepath.Join(dir, "containerd.toml"), fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket, n.Images, networks))
	p := launch(t, "containerd", "containerd", "--config", filepath.Join(dir, "containerd.toml"))
	await(t, p, func(context.Context) error { _, err := os.Stat(socket); return err })
	return socket
}

// startKubelet starts the kubelet and waits until the scheduler may give it pods.
func (n *Node) startKubelet(t testing.TB, dir, socket string) {
	t.Helper()
	configuration := filepath.Join(dir, "kubelet.yaml")
	write(t, configuration, fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: %d
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://%s
cgroupDriver: cgroupfs
cgroupRoot: %s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
resolvConf: ""
`, n.kubelet, socket, makeCgroup(t)))
	p := run(t, "kubelet", "--kubeconfig="+n.Kubeconfig, "--config="+configuration, "--hostname-override=node",
		"--node-ip="+host, "--root-dir="+filepath.Join(dir, "kubelet"))
	await(t, p, func(context.Context) error {
		o := n.Get(t, "/api/v1/nodes/node")
		conditions, _ := Object(o.part("status"))["conditions"].([]any)
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", conditions)
	})
}

// await waits for something that a process does.
func await(t testing.TB, p *stack.Process, ready func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := p.AwaitReady(ctx, ready); err != nil {
		t.Fatal(err)
	}
}

// makeCgroup makes the cgroup of all pods, in each hierarchy that there is, and returns its name.
func makeCgroup(t testing.TB) string {
	t.Helper()
	const mount = "/sys/fs/cgroup"
	name := "/weir-pods-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	folders := []string{mount + name}
	if _, err := os.Stat(mount + "/cgroup.controllers"); err != nil {
		folders, _ = filepath.Glob(mount + "/*/cgroup.procs")
		for i := range folders {
			folders[i] = filepath.Dir(folders[i]) + name
		}
	}
	t.Cleanup(func() { removeCgroups(t, folders) })
	for _, folder := range folders {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// removeCgroups ends all processes in cgroups, and removes the cgroups from the innermost on.
func removeCgroups(t testing.TB, folders []string) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := 0
		for _, folder := range folders {
			left += removeCgroup(folder)
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d cgroups are left of %v", left, folders)
			return
		}
	}
}

// removeCgroup does it once, and returns how many are left.
func removeCgroup(folder string) (left int) {
	inner, _ := filepath.Glob(folder + "/*/cgroup.procs")
	for _, file := range inner {
		left += removeCgroup(filepath.Dir(file))
	}
	processes, _ := os.ReadFile(folder + "/cgroup.procs")
	for _, id := range strings.Fields(string(processes)) {
		if pid, err := strconv.Atoi(id); err == nil && pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // An ended process is no error.
		}
	}
	if err := os.Remove(folder); err != nil && !os.IsNotExist(err) {
		left++
	}
	return left
}

// A Pod is a pod that is not about to end.
type Pod struct {
	Name, Address string
	// Ready means that all its containers are ready. Restarts is the number of their restarts.
	Ready    bool
	Restarts int
}

// Pods returns the pods in a namespace with a label, once they have containers. Without a label it
// returns all.
func (n *Node) Pods(t testing.TB, namespace, label string) (all []Pod) {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name     string
				Deletion string `json:"deletionTimestamp"`
			}
			Status struct {
				Address    string `json:"podIP"`
				Containers []struct {
					Ready    bool
					Restarts int `json:"restartCount"`
				} `json:"containerStatuses"`
			}
		}
	}
	path := "/api/v1/namespaces/" + namespace + "/pods?labelSelector=" + url.QueryEscape(label)
	status, answer, err := n.Call(http.MethodGet, path, "", "")
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal([]byte(answer), &list)
	}
	if err != nil || status != http.StatusOK {
		t.Fatalf("GET %s: %d %s %v", path, status, answer, err)
	}
	for _, i := range list.Items {
		if i.Metadata.Deletion != "" || len(i.Status.Containers) == 0 {
			continue
		}
		pod := Pod{Name: i.Metadata.Name, Address: i.Status.Address, Ready: true}
		for _, c := range i.Status.Containers {
			pod.Ready = pod.Ready && c.Ready
			pod.Restarts += c.Restarts
		}
		all = append(all, pod)
	}
	return all
}

// Probes returns the number of kubelet's probes of a pod's containers, by type and result, like
// "Readiness successful".
func (n *Node) Probes(t testing.TB, pod string) map[string]int {
	t.Helper()
	response, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/metrics/probes", n.kubelet))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("kubelet says %d %s, %v", response.StatusCode, text, err)
	}
	all := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "prober_probe_total{") || label(line, "pod") != pod {
			continue
		}
		value, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all[label(line, "probe_type")+" "+label(line, "result")] += int(value)
	}
	return all
}

func label(line, name string) string {
	m := regexp.MustCompile(`[{,]` + name + `="([^"]*)"`).FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	return m[1]
}
