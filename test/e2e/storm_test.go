package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// lateCalls returns the calls for tokens of all Envoys that came to nothing, and the requests that
// were refused for it.
func (w *world) lateCalls() int64 {
	w.t.Helper()
	n := w.late()
	for _, e := range w.envoys {
		m := w.measured(e)
		n += m["leases.no_answer"] + m["leases.unavailable"] + m["leases.unsent"]
	}
	return n
}

// mustNotContend fails the test if an Envoy gave up a decision because of the work of other
// workers.
func mustNotContend(w *world) {
	w.t.Helper()
	for _, e := range w.envoys {
		m := w.measured(e)
		w.t.Logf("%s: %d attempts were repeated", e.Name, m["buckets.retried"])
		if m["buckets.contended"] != 0 || m["decisions.by_overload"] != 0 {
			w.t.Errorf("%s gave up %d decisions", e.Name, m["buckets.contended"])
		}
	}
}

// Eight workers at one bucket, as fast as they can: each token is used once, and no request is
// refused for the crowd.
func TestWorkersAtOneHotBucket(t *testing.T) {
	w := start(t, setup{alone: true, workers: 8, plugin: `{"policyset": {"version": "weir/v1", "policies": [` +
		`{"name": "hot", "partition": [], "limit": {"quota": 20000, "window": "24h"}, "mode": "local", ` +
		`"on_failure": {"then": "deny"}}]}}`})
	begin := time.Now()
	address := strings.TrimPrefix(w.envoys[0].URL(), "http://")
	statuses := flood{address: address, path: "/", total: 25_000}.run(t)
	t.Logf("of 25 000 requests: %v", statuses)
	earned := int(time.Since(begin).Seconds()/4.32) + 1
	if passed := statuses[http.StatusOK]; passed < 20_000 || passed > 20_000+earned || len(statuses) != 2 {
		t.Errorf("%d passed, want 20 000 and at most %d that were earned", passed, earned)
	}
	time.Sleep(50 * time.Millisecond) // Ticks report the counters.
	mustNotContend(w)
}
