package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// farPolicies give way after two seconds without answers in time.
const farPolicies = `
version: weir/v1
policies:
  - name: leased
    match: {paths: [/leased]}
    partition: []
    limit: {quota: 60, window: 1s}
    on_failure: [{share: 2s}, allow]
  - name: strict
    match: {paths: [/strict]}
    partition: []
    limit: {quota: 60, window: 1s}
    mode: strict
    on_failure: [{share: 2s}, allow]
`

// However far Redis is, 5 ms or 80 ms there and back, limits hold, and callers get the requests
// that the limits allow.
func TestLimitsHoldWhereRedisIsFar(t *testing.T) {
	for _, ms := range []int{5, 80} {
		t.Run(fmt.Sprintf("%d ms", ms), func(t *testing.T) {
			w := start(t, setup{envoys: 2, alone: true})
			w.redis = redistest.Start(t)
			way := startProxy(t, w.redis.Addr())
			way.poison("latency", attributes{"latency": ms})
			w.serve.RedisURL = fmt.Sprintf("redis://127.0.0.1:%d/0", way.port)
			w.startControlPlane()
			w.awaitApplied(w.apply(farPolicies))
			var loads sync.WaitGroup
			for _, path := range []string{"/leased", "/strict"} {
				loads.Go(func() { w.holdsFrom(path) })
			}
			loads.Wait()
		})
	}
}

// holdsFrom sends two and a half times the rate of a path's limit, half to each Envoy. The limit
// must hold from both sides. Requests that a share lets through while an answer is late are
// charged, and half of the limit's rate passes also on a busy machine.
func (w *world) holdsFrom(path string) {
	const rate, late = 60, 30
	got := load{clients: 16, rate: 2.5 * rate, during: full(8 * time.Second), request: func(n int) *http.Request {
		return request(http.MethodPost, w.envoys[n/16%2].URL()+path)
	}}.run(w.ctx)
	took, passed := got.last.Sub(got.first), got.statuses[200]
	most := rate + int64(rate*took.Seconds()) + late
	least := min(got.statuses[200]+got.statuses[429], int64(rate*took.Seconds())) / 2
	w.t.Logf("%s: %v", path, got)
	if passed > most || passed < least {
		w.t.Errorf("%s: %d passed in %v, want %d to %d", path, passed, took, least, most)
	}
}
