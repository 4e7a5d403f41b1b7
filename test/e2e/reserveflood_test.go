package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// flooded has critical requests and a flood of others come through both Envoys in turn.
func (w *world) flooded(path string, span time.Duration, critical, bulk load) (gotCritical, gotBulk tally) {
	through := func(method string) func(int) *http.Request {
		return func(i int) *http.Request { return request(method, w.envoys[i%2].URL()+path) }
	}
	bulk.request, bulk.during = through(http.MethodGet), span+2*time.Second
	flood := bulk.background(w.ctx)
	time.Sleep(time.Second) // The flood is there first.
	critical.request, critical.during = through(http.MethodPost), span
	gotCritical = critical.run(w.ctx)
	return gotCritical, flood.end()
}

// lapsed returns the number of leased tokens that no request used in time. They count as used. It
// happens on a busy machine, where requests come in bursts.
func (w *world) lapsed() (n int64) {
	w.t.Helper()
	for _, e := range w.envoys {
		n += w.measured(e)["leases.lapsed_tokens"]
	}
	return n
}

// Bulk asks for ten times a rate over two Envoys. It gets four fifths of the rate, and critical
// loses nothing of its reserve.
func TestAReserveIsKeptInAFlood(t *testing.T) {
	for _, mode := range []string{"strict", "leased"} {
		t.Run(mode, func(t *testing.T) {
			w := start(t, setup{envoys: 2, workers: 2, policies: strings.Replace(`
version: weir/v1
priorities:
  - {name: critical, match: {methods: [POST]}}
  - {name: bulk}
policies:
  - {name: all, partition: [], limit: {quota: 50, window: 1s}, reserve: {critical: 20%}, mode: MODE, on_failure: [deny]}
`, "MODE", mode, 1)})
			span := full(10 * time.Second)
			late, lapsed := w.lateCalls(), w.lapsed()
			critical, bulk := w.flooded("/", span, load{clients: 4, rate: 10}, load{clients: 50, rate: 500})
			critical.mustBe(t, 200, 429)
			late, lapsed = w.lateCalls()-late, w.lapsed()-lapsed
			if refused := critical.statuses[429]; refused > late+lapsed {
				t.Errorf("%d critical requests were refused, %d calls were late and %d tokens lapsed: %s",
					refused, late, lapsed, critical.samples[429].body)
			}
			lasted := bulk.last.Sub(bulk.first).Seconds()
			got, least, most := float64(bulk.statuses[200]), 0.95*40*lasted-float64(late+lapsed), 40*lasted+40
			t.Logf("critical %v; bulk %v in %.1f s; %d tokens lapsed", critical.statuses, bulk.statuses, lasted, lapsed)
			if got < least || got > most {
				t.Errorf("bulk got %.0f, want %.0f to %.0f", got, least, most)
			}
		})
	}
}
