package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-proxy/weir/test/figures"
	"github.com/weir-proxy/weir/test/figures/bench/load"
	"github.com/weir-proxy/weir/tools/stack"
)

const (
	adminToken = "the-administrator-of-the-benchmarks"
	nodeToken  = "the-envoys-of-the-benchmarks"
	nodeID     = "bench"
	// patience bounds every start.
	patience = 30 * time.Second
)

// workshop has the parts that all contestants use.
type workshop struct {
	// root is the repository's folder.
	root string
	// empty is the built empty filter, service envoyproxy/ratelimit; the latter may be missing if
	// it is not needed.
	empty, service string
	// envoyCPUs are Envoy's alone.
	envoyCPUs string
	// beside is how many processors there are for all but Envoy.
	beside   int
	upstream *upstream
	// loads are the loads that were made so far, by the names of their traffic.
	loads map[string]load.Load
}

// newWorkshop builds the missing programs, and keeps this process and its children off Envoy's
// processor.
func newWorkshop(ctx context.Context, root string) (*workshop, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	cache, err := stack.CacheDir()
	if err != nil {
		return nil, err
	}
	w := &workshop{root: root, service: filepath.Join(cache, "bin/ratelimit")}
	if w.empty, err = figures.EmptyFilter(ctx, root); err != nil {
		return nil, err
	}
	if w.envoyCPUs, w.beside, err = figures.TakeProcessors(); err != nil {
		return nil, err
	}
	w.upstream, err = startUpstream()
	return w, err
}

// world is a contestant's processes.
type world struct {
	envoy *stack.Envoy
	// others are the further processes: control plane, Redis, rate limit service.
	others []*stack.Process
	stops  []func()
}

func (w *world) stop() {
	for i := len(w.stops) - 1; i >= 0; i-- {
		w.stops[i]()
	}
}

// start starts a contestant.
func (s *workshop) start(ctx context.Context, c contestant) (_ *world, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w := &world{}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() { os.RemoveAll(dir) })
	redis := ""
	if c.central || c.part == global {
		if redis, err = w.startRedis(ctx, dir); err != nil {
			return nil, err
		}
	}
	servicePort, controlPlanePort := 0, 0
	var controlPlane *stack.ControlPlane
	switch c.part {
	case global:
		servicePort, err = w.startService(ctx, s.service, dir, redis, stages[c.Scene].quota)
	case calls:
		if servicePort, err = stack.FreePort(); err == nil {
			controlPlane, err = w.startControlPlane(ctx, s.root, dir, redis, c.central,
				fmt.Sprintf("WEIR_RLS_LISTEN=127.0.0.1:%d", servicePort), "WEIR_RLS_OPEN=true", "WEIR_NODE_RATE=0")
		}
	case quotas:
		if servicePort, err = stack.FreePort(); err == nil {
			controlPlane, err = w.startControlPlane(ctx, s.root, dir, redis, c.central,
				fmt.Sprintf("WEIR_RLQS_LISTEN=127.0.0.1:%d", servicePort), "WEIR_RLQS_OPEN=true")
		}
	case weir:
		if controlPlane, err = w.startControlPlane(ctx, s.root, dir, redis, c.central); err == nil {
			controlPlanePort = controlPlane.Port
		}
	}
	if err != nil {
		return nil, err
	}
	if err := w.startEnvoy(ctx, s, c, servicePort, controlPlanePort); err != nil {
		return nil, err
	}
	if controlPlane == nil {
		return w, nil
	}
	version, err := controlPlane.Apply(ctx, []byte(c.policies))
	if err != nil || c.part == calls || c.part == quotas { // Its Envoy is no node: it applies no policy set.
		return w, err
	}
	return w, controlPlane.AwaitApplied(ctx, version, nodeID)
}

func (w *world) startEnvoy(ctx context.Context, s *workshop, c contestant, servicePort, controlPlanePort int) error {
	config, err := os.ReadFile(filepath.Join(s.root, "envoy.yaml"))
	if err != nil {
		return err
	}
	o := stack.EnvoyOptions{
		Config: string(config), Wasm: filepath.Join(s.root, "build/weir.wasm"), NodeID: nodeID, NodeToken: nodeToken,
		UpstreamPort: s.upstream.port(), ControlPlanePort: controlPlanePort, Concurrency: stages[c.Scene].workers,
		CPUs: s.envoyCPUs, FilterHost: stack.WasmHost,
	}
	if c.host != "" {
		o.FilterHost = c.host
	}
	if c.load().keys > usualKeys {
		o.PluginConfig = fmt.Sprintf(pluginConfig, tableKeys)
	}
	if c.part == emptyWasm {
		o.Wasm, o.PluginConfig = s.empty, "{}"
	}
	finished, err := o.Configuration()
	if err == nil {
		_, err = c.configure(finished, servicePort)
	}
	if err != nil {
		return err
	}
	o.Rewrite = func(config string) string {
		config, _ = c.configure(config, servicePort) // It was just tried.
		return config
	}
	if w.envoy, err = stack.StartEnvoy(ctx, o); err == nil {
		w.stops = append(w.stops, w.envoy.Stop)
	}
	return err
}

func (w *world) startControlPlane(
	ctx context.Context, root, dir, redis string, central bool, env ...string,
) (*stack.ControlPlane, error) {
	o := stack.ControlPlaneOptions{
		Binary: filepath.Join(root, "build/weir"), DataDir: dir, AdminToken: adminToken, NodeToken: nodeToken, Env: env,
	}
	if central {
		o.RedisURL = "redis://" + redis + "/0"
	}
	c, err := stack.StartControlPlane(ctx, o)
	if err == nil {
		w.others, w.stops = append(w.others, c.Process), append(w.stops, c.Stop)
	}
	return c, err
}

// startRedis returns the server's host:port.
func (w *world) startRedis(ctx context.Context, dir string) (string, error) {
	p, address, err := stack.StartRedis(ctx, stack.RedisOptions{Dir: dir})
	if err == nil {
		w.others, w.stops = append(w.others, p), append(w.stops, func() { p.Stop(2 * time.Second) })
	}
	return address, err
}

// serviceLimits is one limit for each key, like Weir's.
const serviceLimits = `domain: bench
descriptors:
  - key: ` + keyHeader + `
    rate_limit: {unit: minute, requests_per_unit: %d}
`

// startService starts envoyproxy/ratelimit with the settings it has of itself, and returns the port
// of its gRPC.
func (w *world) startService(ctx context.Context, binary, dir, redis string, quota int) (int, error) {
	if err := stack.Executable(binary); err != nil {
		return 0, fmt.Errorf("envoyproxy/ratelimit is not installed (%w): run tools/setup.sh bench", err)
	}
	folder := filepath.Join(dir, "runtime", "ratelimit", "config")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	limits := fmt.Appendf(nil, serviceLimits, quota)
	if err := os.WriteFile(filepath.Join(folder, "bench.yaml"), limits, 0o644); err != nil {
		return 0, err
	}
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = stack.FreePort(); err != nil {
			return 0, err
		}
	}
	p, err := w.run(stack.Command{Name: "ratelimit", Path: binary, Env: []string{
		"USE_STATSD=false", "LOG_LEVEL=error", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis,
		"RUNTIME_ROOT=" + filepath.Join(dir, "runtime"), "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		fmt.Sprintf("GRPC_PORT=%d", ports[0]), fmt.Sprintf("PORT=%d", ports[1]), fmt.Sprintf("DEBUG_PORT=%d", ports[2]),
	}})
	if err != nil {
		return 0, err
	}
	return ports[0], p.AwaitReady(ctx, func(ctx context.Context) error {
		url := fmt.Sprintf("http://127.0.0.1:%d/healthcheck", ports[1])
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("envoyproxy/ratelimit is not healthy: %s", response.Status)
		}
		return nil
	})
}

func (w *world) run(c stack.Command) (*stack.Process, error) {
	p, err := stack.Start(c)
	if err == nil {
		w.others = append(w.others, p)
		w.stops = append(w.stops, func() { p.Stop(2 * time.Second) })
	}
	return p, err
}
