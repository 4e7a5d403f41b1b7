package e2e

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// hot allows hot restarts of Envoys, each under an id of its own.
func hot(t *testing.T) func(*stack.EnvoyOptions) {
	type one struct{ port, base, epoch int }
	all := map[string]*one{}
	return func(o *stack.EnvoyOptions) {
		t.Helper()
		e := all[o.NodeID]
		if e == nil {
			port, err := stack.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			// Ports are each in use once on this machine, and ids of Envoys below 2^28.
			e = &one{port: port, base: port}
			all[o.NodeID] = e
		} else {
			e.epoch++
		}
		o.Port, o.BaseID, o.Epoch = e.port, e.base, e.epoch
	}
}

// hotRestart replaces an Envoy by a new process, which takes its listener over, and waits until the
// old one has ended.
func (w *world) hotRestart(i int) {
	w.t.Helper()
	old := w.envoys[i]
	w.envoys = append(w.envoys[:i:i], w.envoys[i+1:]...)
	w.startEnvoy(old.Name)
	last := len(w.envoys) - 1
	w.envoys[i], w.envoys[last] = w.envoys[last], w.envoys[i]
	select {
	case <-old.Done():
	case <-time.After(patience):
		w.t.Errorf("the old process of %s has not ended", old.Name)
	}
}

// Envoy is restarted hot under load, while all is well, and while Redis and the control plane are
// away. No client sees a failure. The new process has the tokens that the control plane grants, and
// not the old process's tokens. A limit that refuses in a failure holds. While the control plane is
// away, the new process knows no policies but the policies of its plugin: here a limit of each
// Envoy.
func TestChaosEnvoyIsRestartedHot(t *testing.T) {
	t.Parallel()
	ways := map[string]*proxy{}
	w := start(t, setup{envoys: 2, alone: true, launch: hot(t), ways: func(envoy string, port int) []int {
		if ways[envoy] == nil {
			ways[envoy] = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port))
		}
		return []int{ways[envoy].port}
	}, plugin: `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "weir"}, ` +
		`"policyset": {"version": "weir/v1", "policies": [{"name": "denies", "match": {"paths": ["/denies"]}, ` +
		`"partition": [], "limit": {"quota": 100, "window": "1h"}, "mode": "local"}]}}`})
	w.redis = redistest.Start(t)
	toRedis := startProxy(t, w.redis.Addr())
	w.serve.RedisURL = fmt.Sprintf("redis://127.0.0.1:%d/0", toRedis.port)
	w.startControlPlane()
	w.awaitApplied(w.apply(chaotic))
	both := []string{"upstream", "downstream"}
	for _, c := range []struct {
		name          string
		inflict, heal func()
	}{
		{"all is well", func() {}, func() {}},
		{"Redis is away", func() { toRedis.part(both) }, toRedis.heal},
		{"the control plane is away", func() { ways["envoy-1"].part(both) }, ways["envoy-1"].heal},
	} {
		urls := []string{w.envoys[0].URL(), w.envoys[1].URL()}
		crowd := load{clients: 24, rate: 200, request: func(i int) *http.Request {
			return request(http.MethodGet, urls[i/24%2]+"/denies")
		}}.background(w.ctx)
		callers := w.withinLimits(w.envoys...)
		time.Sleep(either(2*time.Second, 10*time.Second))
		c.inflict()
		time.Sleep(either(500*time.Millisecond, 5*time.Second))
		w.hotRestart(0)
		c.heal()
		w.awaitPolicies()
		w.awaitGround()
		time.Sleep(either(time.Second, 10*time.Second))
		noneRefused(t, c.name, callers)
		const own = 100 // The new process first uses its plugin's policies.
		mustHold(t, c.name, crowd.end(), chaoticBurst, chaoticRate, own, 0.1)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", w.envoys[0].PID())); err != nil {
			t.Errorf("%s: the new process does not run: %v", c.name, err)
		}
	}
}
