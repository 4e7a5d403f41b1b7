package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// holds are the ways in which a network can be parted. As in TCP, all bytes wait until the network
// is whole, and arrive then. No network takes bytes out of a connection, as the toxic timeout does.
var holds = []struct {
	name    string
	streams []string
}{
	{"answers do not arrive", []string{"downstream"}},
	{"requests do not arrive", []string{"upstream"}},
	{"nothing arrives", []string{"upstream", "downstream"}},
}

// part keeps all bytes that go some ways, until heal.
func (p *proxy) part(streams []string) {
	p.t.Helper()
	for _, stream := range streams {
		toxic := fmt.Sprintf(`{"type": "latency", "stream": %q, "attributes": {"latency": %d}}`, stream,
			time.Hour.Milliseconds())
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// tellsOfStore returns an error unless a control plane says that its store is away: no to callers
// who ask for its store, yes with a warning to all other callers.
func (w *world) tellsOfStore(ctx context.Context, c *stack.ControlPlane) error {
	for path, status := range map[string]int{"/readyz/store": http.StatusServiceUnavailable, "/readyz": http.StatusOK} {
		a, err := c.Call(ctx, http.MethodGet, path, nil)
		if err != nil || a.Status != status || status == http.StatusOK && !strings.Contains(string(a.Body), `"warning"`) {
			return fmt.Errorf("%s answers %d %s, %w", path, a.Status, a.Body, err)
		}
	}
	a, err := c.Call(ctx, http.MethodGet, "/metrics", nil)
	if err != nil || !strings.Contains(string(a.Body), `weir_store_breaker_state{server="store"} `) ||
		strings.Contains(string(a.Body), `weir_store_breaker_state{server="store"} 0`) {
		return fmt.Errorf("the metrics say nothing of it: %w", err)
	}
	if !strings.Contains(c.Stderr.String(), "a part of the store does not answer; calls skip it for a time") {
		return errors.New("the log says nothing of it")
	}
	return nil
}

// startBehindProxies starts two Envoys and a control plane on a Redis, with a proxy on each way
// between them: ways are the Envoys', by their names.
func startBehindProxies(t *testing.T) (w *world, ways map[string]*proxy, toRedis *proxy) {
	t.Helper()
	ways = map[string]*proxy{}
	w = start(t, setup{envoys: 2, alone: true, ways: func(envoy string, port int) []int {
		ways[envoy] = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port))
		return []int{ways[envoy].port}
	}})
	w.redis = redistest.Start(t)
	toRedis = startProxy(t, w.redis.Addr())
	w.serve.RedisURL = fmt.Sprintf("redis://127.0.0.1:%d/0", toRedis.port)
	w.startControlPlane()
	w.awaitApplied(w.apply(chaotic))
	return w, ways, toRedis
}

// Each connection between two parts is cut, one way and both ways, for longer than calls live, and
// all bytes on their way arrive when it is whole. A limit that refuses in a failure holds to the
// token. Only shares let requests pass beyond the other limit, no caller within its limits is
// refused, and each control plane reports whether it serves.
func TestChaosPartitions(t *testing.T) {
	t.Parallel()
	w, ways, toRedis := startBehindProxies(t)
	for _, h := range holds {
		w.endure(fault{name: "control plane and Redis: " + h.name, ladder: true,
			inflict: func() { toRedis.part(h.streams) },
			heal: func() {
				w.awaitStoreAway()
				toRedis.heal()
			},
		}, either(1, 4))
		w.endure(fault{name: "Envoys and control plane: " + h.name, ladder: true,
			inflict: func() {
				for _, way := range ways {
					way.part(h.streams)
				}
			},
			heal: func() {
				for _, way := range ways {
					way.heal()
				}
			},
		}, either(1, 4))
	}
}

// twoReplicas starts two control planes on one Redis, the first behind a proxy, and Envoys that
// know both.
func twoReplicas(t *testing.T, policies string) (w *world, planes [2]*stack.ControlPlane, way *proxy) {
	t.Helper()
	second, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w = start(t, setup{envoys: 2, alone: true, ways: func(_ string, port int) []int { return []int{port, second} }})
	w.redis = redistest.Start(t)
	way = startProxy(t, w.redis.Addr())
	w.serve.RedisURL = fmt.Sprintf("redis://127.0.0.1:%d/0", way.port)
	w.startControlPlane()
	planes[0] = w.controlPlane
	w.serve.Port, w.serve.RedisURL = second, w.redis.URL()
	w.startControlPlane()
	planes[1] = w.controlPlane
	w.awaitReplicas(2)
	w.awaitApplied(w.apply(policies))
	return w, planes, way
}

// banKey bans a caller of a policy through a control plane, and reports whether that is stored.
func (w *world) banKey(c *stack.ControlPlane, caller string) (durable bool) {
	w.t.Helper()
	a, err := c.Call(w.within(patience), http.MethodPost,
		"/v1/keys/within-strict/ban?partition=header:x-caller:"+caller, []byte(`{"reason": "a test"}`))
	var got struct{ Durable *bool }
	if err != nil || a.Status != http.StatusOK || json.Unmarshal(a.Body, &got) != nil || got.Durable == nil {
		w.t.Fatalf("the ban of %s: %d %s %v", caller, a.Status, a.Body, err)
	}
	return *got.Durable
}

// One of two replicas loses Redis, one way and both ways. Envoys go on with the other replica: the
// limits hold from both sides, and pushes reach all. The replica that is cut off takes no policies,
// and says of a ban that it is not stored. When it is back, both know the ban.
func TestChaosAReplicaLosesRedis(t *testing.T) {
	t.Parallel()
	w, planes, way := twoReplicas(t, chaotic)
	pushed := 0
	for i, h := range holds {
		callers, denies := w.withinLimits(w.envoys...), w.crowd("/denies", 100)
		time.Sleep(time.Second)
		begin := time.Now()
		way.part(h.streams)
		pushed++
		w.controlPlane = planes[1]
		w.awaitApplied(w.apply(chaotic + fmt.Sprintf(
			"  - {name: pushed, match: {paths: [/pushed]}, partition: [], limit: {quota: %d, window: 1h}}\n", pushed)))
		w.await("the replica to tell of its store", func(ctx context.Context) error {
			return w.tellsOfStore(ctx, planes[0])
		})
		w.awaitReplicas(1)
		w.awaitGround()
		t.Logf("%s: exact by the other replica after %v", h.name, time.Since(begin).Round(time.Millisecond))
		caller := fmt.Sprint("banned-", i)
		if w.banKey(planes[0], caller) {
			t.Errorf("%s: a ban is stored that cannot be", h.name)
		}
		if a, err := planes[0].Call(w.ctx, http.MethodPut, "/v1/policyset", []byte(chaotic), "If-Match", "*",
			"Content-Type", "application/yaml"); err != nil || a.Status/100 != 5 {
			t.Errorf("%s: a policy set is answered %d %s %v", h.name, a.Status, a.Body, err)
		}
		way.heal()
		w.awaitReplicas(2)
		for e := range w.envoys {
			w.awaitStatus(e, http.StatusForbidden, "/within/strict", "x-caller", caller)
		}
		for n, c := range planes {
			w.await("the ban to be known", func(ctx context.Context) error {
				a, err := c.Call(ctx, http.MethodGet, "/v1/keys/within-strict?partition=header:x-caller:"+caller, nil)
				if err != nil || !strings.Contains(string(a.Body), `"ban"`) {
					return fmt.Errorf("replica %d says %d %s %w", n, a.Status, a.Body, err)
				}
				return nil
			})
		}
		noneRefused(t, h.name, callers)
		mustHold(t, h.name, denies.end(), chaoticBurst, chaoticRate, 0, 0.1)
	}
	for _, e := range w.envoys {
		last := 0
		for _, found := range versionLine.FindAllStringSubmatch(e.Stderr.String(), -1) {
			version, err := strconv.Atoi(found[1])
			if err != nil {
				t.Fatal(err)
			}
			if version < last {
				t.Errorf("the replica that was cut off took %s back from version %d to %d", e.Name, last, version)
			}
			last = version
		}
		if last == 0 {
			t.Errorf("the log of %s has no version", e.Name)
		}
	}
}

// versionLine is how Envoy's log has a version of the policy set.
var versionLine = regexp.MustCompile(`policy set version (\d+) is in force`)
