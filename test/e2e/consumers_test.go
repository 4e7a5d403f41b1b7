package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const ownLimits = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: strict, match: {paths: [/strict]}, partition: [consumer], limit: {quota: 5, window: 24h}, mode: strict}
  - {name: leased, match: {paths: [/leased]}, partition: [consumer], limit: {quota: 5, window: 24h}, mode: leased}
  - {name: optimistic, match: {paths: [/optimistic]}, partition: [consumer], limit: {quota: 5, window: 24h}, mode: optimistic}
  - {name: local, match: {paths: [/local]}, partition: [consumer], limit: {quota: 5, window: 24h}, mode: local}
  - {name: windows, match: {paths: [/windows]}, partition: [consumer], algorithm: sliding_window, limit: {quota: 5, window: 24h}, mode: strict}
  - {name: busy, match: {paths: [/busy]}, partition: [consumer], limit: {quota: 1000000, window: 1m}, mode: leased}
`

// put replaces the record of a consumer.
func (w *world) put(id, body string) {
	w.t.Helper()
	answer, err := w.controlPlane.Call(w.within(patience), http.MethodPut, "/v1/consumers/"+id, []byte(body),
		"If-Match", "*")
	if err != nil || answer.Status != http.StatusOK {
		w.t.Fatalf("%s: %v %d %s", id, err, answer.Status, answer.Body)
	}
}

// passed sends n requests of a consumer, spread over all Envoys, and returns the number that
// passes.
func (w *world) passed(n int, path, id string) (passed int) {
	w.t.Helper()
	for i := range n {
		for _, status := range strings.Fields(statuses(w.t, 1, w.envoys[i%len(w.envoys)].URL()+path, "x-api-key", id)) {
			if status == "200" {
				passed++
			}
		}
	}
	return passed
}

// A consumer's own limit is in force on every Envoy within a second, keeps the used tokens, and
// ends by itself.
func TestAConsumerHasALimitOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, embedded := range map[string]bool{"in Redis": false, "in a file": true} {
		t.Run(name, func(t *testing.T) {
			w := start(t, setup{envoys: 2, policies: ownLimits, embedded: embedded})
			paths := []string{"strict", "leased", "optimistic", "local", "windows"}
			for _, path := range paths {
				if got := w.passed(12, "/"+path, "alice"); got != 5 &&
					(path != "local" && path != "optimistic" || got < 5 || got > 10) {
					t.Errorf("%s: %d of 5 have passed", path, got)
				}
			}
			end := time.Now().Add(8 * time.Second)
			var own []string
			for _, path := range paths {
				own = append(own, fmt.Sprintf(`{"policy": %q, "limit": {"quota": 25, "window": "24h"}, "expires_at": %q}`, path, end.Format(time.RFC3339Nano)))
			}
			w.put("alice", `{"overrides": [`+strings.Join(own, ",")+`]}`)
			time.Sleep(time.Second)
			for _, path := range paths {
				got, least, most := w.passed(60, "/"+path, "alice"), 20, 20
				switch path {
				case "local": // Each Envoy has 25, and has let 5 pass.
					least, most = 40, 40
				case "optimistic": // Nodes may overshoot by their slack.
					least, most = 10, 33
				case "leased": // A few may lie on the other Envoy.
					least = 17
				}
				if got < least || got > most {
					t.Errorf("%s: %d have passed, want %d to %d", path, got, least, most)
				}
			}
			if got := w.passed(12, "/strict", "bob"); got != 5 {
				t.Errorf("of another consumer %d have passed", got)
			}
			if time.Now().After(end) {
				t.Fatal("the test was too slow")
			}
			time.Sleep(time.Until(end) + 200*time.Millisecond)
			w.put("carol", `{"overrides": [{"policy": "strict", "limit": "unlimited"}]}`)
			for _, path := range paths {
				if got := w.passed(6, "/"+path, "alice"); got != 0 {
					t.Errorf("%s: %d have passed after the end", path, got)
				}
			}
			time.Sleep(time.Second)
			if got := w.passed(30, "/strict", "carol"); got != 30 {
				t.Errorf("of 30 without a limit %d have passed", got)
			}
		})
	}
}

// A ban reaches every Envoy within two seconds under load, whatever they have leased, and ends by
// itself though the control plane is away. A bypass is never limited.
func TestABanBeatsLeases(t *testing.T) {
	t.Parallel()
	for name, embedded := range map[string]bool{"in Redis": false, "in a file": true} {
		t.Run(name, func(t *testing.T) {
			w := start(t, setup{envoys: 2, workers: 2, policies: ownLimits, embedded: embedded})
			busy := load{clients: 8, rate: 500, request: func(i int) *http.Request {
				return request(http.MethodGet, w.envoys[i%2].URL()+"/busy", "x-api-key", fmt.Sprint("c", i%20))
			}}.background(w.ctx)
			time.Sleep(500 * time.Millisecond)
			end := time.Now().Add(9 * time.Second).Truncate(time.Second)
			w.put("c7", fmt.Sprintf(`{"banned": {"reason": "abuse", "expires_at": %q}}`, end.Format(time.RFC3339)))
			put := time.Now()
			for _, e := range w.envoys {
				w.await(e.Name+" to refuse", func(context.Context) error {
					if got := statuses(t, 4, e.URL()+"/busy", "x-api-key", "c7"); got != "403 403 403 403" {
						return fmt.Errorf("%s", got)
					}
					return nil
				})
			}
			mustTake(t, "the ban", put, time.Now(), 2*time.Second)
			got := busy.end()
			got.mustBe(t, 200, 403)
			// A consumer that has used up its limit passes once it is not limited.
			w.passed(12, "/strict", "probe")
			w.put("probe", `{"bypass": {}}`)
			w.await("the bypass", func(context.Context) error {
				if got := w.passed(8, "/strict", "probe"); got != 8 {
					return fmt.Errorf("%d of 8", got)
				}
				return nil
			})
			// An Envoy that starts now has never seen the consumer, and refuses it from its first
			// request on.
			w.startEnvoy("envoy-3")
			w.awaitApplied(1)
			time.Sleep(300 * time.Millisecond)
			if got := statuses(t, 4, w.envoys[2].URL()+"/busy", "x-api-key", "c7"); got != "403 403 403 403" {
				t.Errorf("a new Envoy: %s", got)
			}
			w.controlPlane.Stop()
			if got := w.passed(6, "/busy", "c7"); got != 0 || time.Now().After(end) {
				t.Errorf("without the control plane %d have passed", got)
			}
			time.Sleep(time.Until(end) + 200*time.Millisecond)
			if got := w.passed(6, "/local", "c7"); got != 6 {
				t.Errorf("after the end of the ban %d of 6 have passed", got)
			}
		})
	}
}
