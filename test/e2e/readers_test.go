package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// readRoutes are those whose answers are largest, and take the store most.
var readRoutes = []string{
	"/v1/decisions?page_size=200", "/v1/audit?page_size=200&by=nemo", "/v1/audit?page_size=200",
	"/v1/consumers?page_size=200", "/v1/versions?page_size=200", "/v1/policies", "/v1/nodes", "/v1/series/comparison",
	"/v1/top", "/v1/policyset", "/metrics",
}

// goodput returns how many requests through the first Envoy the control plane decided in time, and
// how many a share decided because its answer was late, while the readers read all routes.
func (w *world) goodput(round, readers int) (good, late, reads int64) {
	w.t.Helper()
	const during = 3 * time.Second
	done := make(chan struct{})
	var all sync.WaitGroup
	var read atomic.Int64
	for i := range readers {
		all.Go(func() {
			for n := i; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(10 * time.Millisecond):
				}
				a, err := w.controlPlane.Call(w.ctx, http.MethodGet, readRoutes[n%len(readRoutes)], nil)
				if err == nil && a.Status == http.StatusOK {
					read.Add(1)
				}
			}
		})
	}
	before := w.measured(w.envoys[0])
	got := load{clients: 16, rate: 150, during: during, request: func(i int) *http.Request {
		return request(http.MethodGet, w.envoys[0].URL()+"/asks", "x-api-key", fmt.Sprint(round, " ", readers, " ", i))
	}}.run(w.ctx)
	close(done)
	all.Wait()
	got.mustBe(w.t, 200)
	time.Sleep(20 * time.Millisecond) // Earlier counts are reported by now.
	d := difference(w.measured(w.envoys[0]), before)
	return d["decisions.by_central"], d["decisions.by_share"] + d["decisions.by_failure_allow"], read.Load()
}

// A hundred readers of the routes with the largest answers change little for requests through an
// Envoy that must each ask the control plane, though the readers of this test use the same
// processors.
func TestReadersLeaveRequestsAlone(t *testing.T) {
	var policies strings.Builder
	policies.WriteString("version: weir/v1\nidentity: {consumer: [{header: x-api-key}], tier: [assignment], " +
		"default_tier: free}\ntiers: [free, gold]\npolicies:\n" +
		"  - {name: asks, match: {paths: [/asks]}, partition: [consumer], mode: strict, " +
		"limit: {quota: 100, window: 1h}}\n")
	for i := range 1000 {
		fmt.Fprintf(&policies, "  - {name: p%[1]d, match: {paths: [/p%[1]d]}, partition: [], "+
			"limit: {quota: 100, window: 1h}}\n", i)
	}
	w := start(t, setup{policies: policies.String()})
	for page := range 5 {
		items := make([]string, 1000)
		for i := range items {
			items[i] = fmt.Sprintf(`{"id": "c%d-%d", "tier": "gold"}`, page, i)
		}
		a, err := w.controlPlane.Call(w.ctx, http.MethodPost, "/v1/consumers",
			[]byte(`{"consumers": [`+strings.Join(items, ",")+`]}`), "If-Match", "*")
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("%d %s %v", a.Status, a.Body, err)
		}
	}
	w.goodput(-1, 0) // Until connections are there.
	most := 0.0
	for round := range 3 {
		good, late, _ := w.goodput(round, 0)
		beside, besideLate, reads := w.goodput(round, 100)
		t.Logf("alone %d were decided in time and %d late; beside %d reads of a hundred readers %d and %d", good, late,
			reads, beside, besideLate)
		if good == 0 || reads == 0 {
			t.Fatal("nothing was asked or read")
		}
		share := func(good, late int64) float64 { return float64(good) / float64(max(good+late, 1)) }
		if most = max(most, share(beside, besideLate)/share(good, late)); most > 0.6 {
			return
		}
	}
	t.Errorf("beside readers %.2f of the share that is decided in time without readers", most)
}
