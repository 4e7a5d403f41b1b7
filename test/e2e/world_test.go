package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	adminToken = "the-administrator-of-the-tests"
	nodeToken  = "the-envoys-of-the-tests"
	// patience bounds every wait for something that should happen at once.
	patience = 30 * time.Second
)

// setup lists the parts of a world. The zero value is one Envoy, a control plane on a Redis, and an
// upstream.
type setup struct {
	// envoys is the number of Envoys; 0 means 1. They are called envoy-1, envoy-2, …
	envoys int
	// workers is the number of workers of each Envoy; 0 means 1.
	workers int
	// policies is the policy set to start with, in YAML; empty is none.
	policies string
	// embedded puts the state into a file instead of Redis.
	embedded bool
	// alone leaves out the control plane and Redis, until startControlPlane is called.
	alone bool
	// plugin replaces the filter's configuration: JSON in one line.
	plugin string
	// nodeToken is the Envoys', if it is not the control plane's.
	nodeToken string
	// host is where Envoy listens; empty is 127.0.0.1.
	host string
	// rewrite changes Envoy's configuration.
	rewrite func(string) string
	// launch changes how an Envoy is started.
	launch func(*stack.EnvoyOptions)
	// ways, if not nil, returns the ports at which an Envoy finds control planes, given the port of
	// the first control plane.
	ways func(envoy string, port int) []int
	// handler is the upstream's; nil echoes.
	handler http.Handler
	// env is added to the control plane's environment.
	env []string
}

// world is a running set-up. It ends with the test, and is printed if the test has failed.
type world struct {
	t   *testing.T
	ctx context.Context
	setup

	redis        *redistest.Server
	controlPlane *stack.ControlPlane
	upstream     *stack.Upstream
	envoys       []*stack.Envoy
	// serve is how to start the control plane again.
	serve stack.ControlPlaneOptions
}

func start(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), setup: s}
	var err error
	if w.upstream, err = stack.StartUpstream(s.handler); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.upstream.Stop)
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w.serve = stack.ControlPlaneOptions{
		Binary: controlPlanePath, Port: port, DataDir: t.TempDir(), AdminToken: adminToken, NodeToken: nodeToken,
		Env: s.env,
	}
	if !s.embedded && !s.alone {
		w.redis = redistest.Start(t)
		w.serve.RedisURL = w.redis.URL()
	}
	var version uint64
	if !s.alone {
		w.startControlPlane()
		if s.policies != "" {
			version = w.apply(s.policies)
		}
	}
	for i := range max(1, s.envoys) {
		w.startEnvoy("envoy-" + strconv.Itoa(i+1))
	}
	if version > 0 {
		w.awaitApplied(version)
	}
	return w
}

// within bounds a step of the test.
func (w *world) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.ctx, d)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) startControlPlane() {
	w.t.Helper()
	c, err := stack.StartControlPlane(w.within(patience), w.serve)
	if err != nil {
		w.t.Fatal(err)
	}
	w.controlPlane = c
	w.t.Cleanup(func() {
		c.Stop()
		w.show(c.Process)
	})
}

func (w *world) startEnvoy(id string) {
	w.t.Helper()
	e, err := stack.StartEnvoy(w.within(patience), w.envoyOptions(id))
	if err != nil {
		w.t.Fatal(err)
	}
	w.envoys = append(w.envoys, e)
	w.t.Cleanup(func() {
		if err := e.Err(); err != nil && slices.Contains(w.envoys, e) {
			w.t.Error(err)
		}
		e.Stop()
		for _, sign := range signsOfACrash {
			if strings.Contains(e.Stderr.String(), sign) {
				w.t.Errorf("the filter of %s crashed: its log says %q", e.Name, sign)
			}
		}
		w.show(e.Process)
	})
}

// signsOfACrash are log lines of a Wasm virtual machine that fails, and of the native host.
var signsOfACrash = []string{"Proxy-Wasm plugin in-VM backtrace", "Function: proxy_on", "Uncaught RuntimeError",
	"weir: fault in the filter"}

// restartEnvoy replaces the first Envoy by a new process of the same id.
func (w *world) restartEnvoy() {
	w.t.Helper()
	old := w.envoys[0]
	w.envoys = w.envoys[1:]
	old.Stop()
	w.startEnvoy(old.Name)
}

func (w *world) envoyOptions(id string) stack.EnvoyOptions {
	w.t.Helper()
	config, err := os.ReadFile(envoyConfigPath)
	if err != nil {
		w.t.Fatal(err)
	}
	token := nodeToken
	if w.setup.nodeToken != "" {
		token = w.setup.nodeToken
	}
	o := stack.EnvoyOptions{
		Name: id, NodeID: id, NodeToken: token, Config: string(config), Wasm: filterPath, Host: w.host,
		UpstreamPort: w.upstream.Port, ControlPlanePort: w.serve.Port, Concurrency: max(1, w.workers),
		PluginConfig: w.plugin, Rewrite: w.rewrite, LogLevel: "info",
	}
	if w.ways != nil {
		ports := w.ways(id, w.serve.Port)
		o.ControlPlanePort, o.Rewrite = ports[0], func(config string) string { return withEndpoints(config, ports) }
	}
	if w.launch != nil {
		w.launch(&o)
	}
	return o
}

// withEndpoints adds endpoints to the cluster whose only one is at the first of the ports.
func withEndpoints(config string, ports []int) string {
	const before = "              - endpoint:\n                  address:\n                    socket_address: "
	endpoint := func(port int) string {
		return fmt.Sprintf("%s{address: %q, port_value: %d}\n", before, "127.0.0.1", port)
	}
	var all strings.Builder
	for _, port := range ports {
		all.WriteString(endpoint(port))
	}
	return strings.Replace(config, endpoint(ports[0]), all.String(), 1)
}

// longLine is the line with the parts of its build that Envoy writes at its start. No failure needs
// it.
var longLine = regexp.MustCompile(`(?m)^(.{300}).+$`)

// show prints the last that a process wrote, if the test has failed.
func (w *world) show(p *stack.Process) {
	if w.t.Failed() {
		last := p.Stdout.Tail(5) + "\n" + p.Stderr.Tail(40)
		w.t.Logf("%s wrote at last:\n%s", p.Name, longLine.ReplaceAllString(last, "$1…"))
	}
}

// ids returns the Envoys' names.
func (w *world) ids() (ids []string) {
	for _, e := range w.envoys {
		ids = append(ids, e.Name)
	}
	return ids
}

// apply stores a policy set and returns its version.
func (w *world) apply(policies string) uint64 {
	w.t.Helper()
	version, err := w.controlPlane.Apply(w.within(patience), []byte(policies))
	if err != nil {
		w.t.Fatal(err)
	}
	return version
}

func (w *world) awaitApplied(version uint64) {
	w.t.Helper()
	if err := w.controlPlane.AwaitApplied(w.within(patience), version, w.ids()...); err != nil {
		w.t.Fatal(err)
	}
}

// awaitPolicies waits until each Envoy's own process has a policy set. The control plane still
// lists a process that an Envoy has just replaced, so awaitApplied does not show it.
func (w *world) awaitPolicies() {
	w.t.Helper()
	w.await("every Envoy to have a policy set", func(ctx context.Context) error {
		for _, e := range w.envoys {
			counts, err := w.metricsOf(ctx, e)
			if err != nil {
				return err
			}
			if counts["snapshots.applied"] == 0 {
				return fmt.Errorf("%s has none", e.Name)
			}
		}
		return nil
	})
}

// await waits until a condition holds.
func (w *world) await(what string, ready func(context.Context) error) {
	w.t.Helper()
	if err := stack.Await(w.within(patience), what, ready); err != nil {
		w.t.Fatal(err)
	}
}

// awaitLog waits until an Envoy has logged a text.
func (w *world) awaitLog(e *stack.Envoy, text string) {
	w.t.Helper()
	w.await(fmt.Sprintf("%s to log %q", e.Name, text), func(context.Context) error {
		if !strings.Contains(e.Stderr.String(), text) {
			return fmt.Errorf("its last lines:\n%s", e.Stderr.Tail(10))
		}
		return nil
	})
}

// memory is the memory of an Envoy, in bytes.
type memory struct {
	// allocated is the memory that Envoy's own allocator has given out. resident is the kernel's
	// count: the filter's memory is only in the latter.
	allocated, resident int64
}

func (m memory) String() string {
	return fmt.Sprintf("%.1f MB allocated, %.1f MB resident", float64(m.allocated)/1e6, float64(m.resident)/1e6)
}

func (w *world) memory(e *stack.Envoy) memory {
	w.t.Helper()
	m, err := memoryOf(w.ctx, e.AdminPort, e.PID())
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func memoryOf(ctx context.Context, adminPort, pid int) (m memory, err error) {
	content, err := (&stack.Envoy{AdminPort: adminPort}).Admin(ctx, "/memory")
	if err != nil {
		return m, err
	}
	var answer struct {
		Allocated int64 `json:"allocated,string"`
	}
	if err := json.Unmarshal(content, &answer); err != nil {
		return m, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return m, err
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(status), &total, &resident); err != nil {
		return m, err
	}
	return memory{answer.Allocated, resident * int64(os.Getpagesize())}, nil
}

// awaitMemory waits until an Envoy uses the same memory as before, give or take slack in each
// measure; closing connections takes it a moment.
func (w *world) awaitMemory(e *stack.Envoy, before memory, slack memory) memory {
	w.t.Helper()
	var now memory
	w.await(fmt.Sprintf("%s to hold again %s", e.Name, before), func(context.Context) error {
		now = w.memory(e)
		if now.allocated-before.allocated > slack.allocated || now.resident-before.resident > slack.resident {
			return fmt.Errorf("it holds %s", now)
		}
		return nil
	})
	return now
}

// awaitCounter waits until a counter of an Envoy's filter, which reports with its tick, has a
// value.
func (w *world) awaitCounter(e *stack.Envoy, name string, want int64) {
	w.t.Helper()
	w.await(fmt.Sprintf("%s to have counted %d %s", e.Name, want, name), func(ctx context.Context) error {
		values, err := w.metricsOf(ctx, e)
		if err != nil {
			return err
		}
		if got, ok := values[strings.TrimPrefix(name, "weir.")]; !ok || got != want {
			return fmt.Errorf("it has %d, defined: %t", got, ok)
		}
		return nil
	})
}

// awaitOutput waits until an Envoy has written a text to its access log.
func (w *world) awaitOutput(e *stack.Envoy, text string) {
	w.t.Helper()
	w.await(fmt.Sprintf("%s to write %q", e.Name, text), func(context.Context) error {
		if !strings.Contains(e.Stdout.String(), text) {
			return fmt.Errorf("its last lines:\n%s", e.Stdout.Tail(5))
		}
		return nil
	})
}

// launch starts the control plane without waiting for it to be ready.
func launch(w *world) (*stack.ControlPlane, error) {
	c, err := stack.LaunchControlPlane(w.serve)
	if err == nil {
		w.controlPlane = c
		w.t.Cleanup(func() {
			c.Stop()
			w.show(c.Process)
		})
	}
	return c, err
}
