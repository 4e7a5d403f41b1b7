package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// rolled is a policy set whose limits none of the clients reaches; its number only makes one version differ from the other. What is
// allowed in a failure is counted, so that a machine that stands still for longer than requests wait is told from a lost call.
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
`, 60000+n, 600+n)
}

// awaitReplicas waits until the health checks of every Envoy have found so many replicas.
func (w *world) awaitReplicas(n int) {
	w.t.Helper()
	for _, e := range w.envoys {
		w.await(fmt.Sprintf("%d replicas to be healthy for %s", n, e.Name), func(ctx context.Context) error {
			content, err := e.Admin(ctx, "/stats?filter=^cluster\\.weir\\.membership_healthy$")
			if err != nil {
				return err
			}
			if !strings.HasSuffix(strings.TrimSpace(string(content)), fmt.Sprint(": ", n)) {
				return errors.New(string(content))
			}
			return nil
		})
	}
}

// All replicas of the control plane are restarted one after the other while policies are pushed: no client sees a failure, none is
// refused that is within its limit, few calls are lost, and every Envoy follows every push.
func TestChaosAControlPlaneIsRolled(t *testing.T) {
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
	w.awaitStep(false)
	w.awaitReplicas(replicas)
	often := w.crowd("/often", 100)
	seldom := load{clients: 16, rate: 100, request: func(i int) *http.Request {
		return request(http.MethodPost, w.envoys[i%2].URL()+"/seldom", "x-api-key", fmt.Sprint("consumer-", i/2%40))
	}}.background(w.ctx)
	before := w.measured(w.envoys[0])
	version, worst := 0, time.Duration(0)
	push := func() {
		version++
		begin := time.Now()
		// Of the control planes that run one takes it.
		w.awaitApplied(w.apply(rolled(version)))
		worst = max(worst, time.Since(begin))
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
			w.awaitReplicas(replicas) // As a roll-out waits that gives a replica a moment after it is ready.
		}
	}
	a, b := often.end(), seldom.end()
	t.Logf("%d pushes, each on both Envoys after %v at most; often: %v; seldom: %v", version, worst.Round(time.Millisecond), a, b)
	t.Logf("of the first Envoy: %v", difference(w.measured(w.envoys[0]), before))
	a.mustBe(t, 200)
	b.mustBe(t, 200)
	if worst > 5*time.Second {
		t.Errorf("a push took %v to reach both Envoys", worst)
	}
	for _, e := range w.envoys {
		// Replicas go here faster than Envoy's health checks look, so a retry may find no other that it takes for healthy.
		if m := w.measured(e); m["leases.unavailable"]*5 > m["leases.answered"] || m["decisions.by_central"] == 0 || m["decisions.by_lease"] == 0 {
			t.Errorf("%s has lost calls, or made none: %v", e.Name, m)
		}
		content, err := e.Admin(w.ctx, "/stats?filter=^cluster\\.weir\\.upstream_rq_retry_success$")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", e.Name, content)
		if strings.HasSuffix(strings.TrimSpace(string(content)), ": 0") {
			t.Errorf("%s has noticed nothing", e.Name)
		}
	}
}
