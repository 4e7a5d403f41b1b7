package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// rolled returns a policy set whose limits no client reaches; its number only makes one version
// differ from the other. Requests that a failure allows are counted. So a lost call is
// distinguished from a machine that stands still for longer than requests wait.
func rolled(n int) string {
	return fmt.Sprintf(`
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: often
    match: {paths: [/often]}
    partition: []
    limit: {quota: %d, window: 60s}
    mode: leased
    on_failure: {then: allow}
  - name: seldom
    match: {paths: [/seldom]}
    partition: [consumer]
    limit: {quota: %d, window: 60s}
    mode: leased
    on_failure: {then: allow}
`, 60000+n, 600+n) + within
}

// awaitReplicas waits until the health checks of every Envoy have found n replicas.
func (w *world) awaitReplicas(n int64) {
	w.t.Helper()
	for _, e := range w.envoys {
		w.await(fmt.Sprintf("%d replicas to be healthy for %s", n, e.Name), func(context.Context) error {
			if found := w.clusterCounter(e, "membership_healthy"); found != n {
				return fmt.Errorf("they are %d", found)
			}
			return nil
		})
	}
}

// clusterCounter returns the sum of some of an Envoy's statistics of the control plane's cluster.
func (w *world) clusterCounter(e *stack.Envoy, names ...string) (sum int64) {
	w.t.Helper()
	content, err := e.Admin(w.ctx, "/stats?filter=^cluster\\.weir\\.("+strings.Join(names, "|")+")$")
	if err != nil {
		w.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	if len(lines) != len(names) {
		w.t.Fatalf("Envoy knows not all of %v: %s", names, content)
	}
	for _, line := range lines {
		_, value, _ := strings.Cut(line, ": ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			w.t.Fatal(line, err)
		}
		sum += n
	}
	return sum
}

// All replicas of the control plane are restarted one after the other while policies are pushed: no
// client sees a failure, none is refused that is within its limit, no call is lost, and every Envoy
// follows every push.
func TestChaosAControlPlaneIsRolled(t *testing.T) {
	t.Parallel()
	const replicas = 3
	var ports []int
	w := start(t, setup{envoys: 2, policies: rolled(0), ways: func(_ string, port int) []int {
		if ports == nil {
			ports = []int{port}
			for len(ports) < replicas {
				more, err := stack.FreePort()
				if err != nil {
					t.Fatal(err)
				}
				ports = append(ports, more)
			}
		}
		return ports
	}})
	planes := []*stack.ControlPlane{w.controlPlane}
	for _, port := range ports[1:] {
		w.serve.Port = port
		w.startControlPlane()
		planes = append(planes, w.controlPlane)
	}
	w.awaitGround()
	w.awaitReplicas(replicas)
	often := w.crowd("/often", 100)
	seldom := load{clients: 16, rate: 100, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%2].URL()+"/seldom", "x-api-key", fmt.Sprint("consumer-", i/2%40))
	}}.background(w.ctx)
	callers := w.withinLimits(w.envoys...)
	before := w.measured(w.envoys[0])
	version, worst := 0, time.Duration(0)
	push := func() {
		version++
		begin := time.Now()
		// One of the control planes that run takes it.
		w.awaitApplied(w.apply(rolled(version)))
		now := time.Now()
		worst = max(worst, now.Sub(begin)-stalls.between(begin, now))
	}
	pause := either(500*time.Millisecond, 2*time.Second)
	for range either(1, 5) {
		for i := range planes {
			w.controlPlane = planes[(i+1)%replicas]
			planes[i].Stop()
			push()
			time.Sleep(pause)
			w.serve.Port = ports[i]
			w.startControlPlane()
			planes[i] = w.controlPlane
			push()
			time.Sleep(pause)
		}
	}
	noneRefused(t, "a roll-out", callers)
	a, b := often.end(), seldom.end()
	t.Logf("%d pushes, each on both Envoys after %v at most, without stalls; often: %v; seldom: %v", version,
		worst.Round(time.Millisecond), a, b)
	t.Logf("of the first Envoy: %v", difference(w.measured(w.envoys[0]), before))
	a.mustBe(t, 200)
	b.mustBe(t, 200)
	if worst > 5*time.Second {
		t.Errorf("a push took %v without stalls to reach both Envoys", worst)
	}
	for _, e := range w.envoys {
		if m := w.measured(e); m["decisions.by_central"] == 0 || m["decisions.by_lease"] == 0 {
			t.Errorf("%s has made no calls: %v", e.Name, m)
		}
		// Envoy counts each call that it gives up. An answer that Redis took too long on a busy
		// machine is no lost call.
		if lost := w.clusterCounter(e, "upstream_rq_retry_limit_exceeded", "upstream_rq_retry_overflow",
			"upstream_cx_none_healthy"); lost > 0 {
			t.Errorf("%s has lost %d calls", e.Name, lost)
		}
		if again := w.clusterCounter(e, "upstream_rq_retry_success"); again == 0 {
			t.Errorf("%s has noticed nothing", e.Name)
		} else {
			t.Logf("%s: %d calls answered by another replica", e.Name, again)
		}
	}
}
