package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// Bursts of requests with pauses between use as many tokens as there were requests, whatever the
// algorithm and however slow the limit: the tokens that were leased for a burst and not used go
// back. One caller meets both Envoys in turn. A reset gives everything back then.
func TestUnusedTokensGoBack(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: day, match: {paths: [/day]}, partition: [consumer], limit: {quota: 200, window: 1d}}
  - {name: fixed, match: {paths: [/fixed]}, partition: [consumer], limit: {quota: 200, window: 1d}, algorithm: fixed_window}
  - {name: sliding, match: {paths: [/sliding]}, partition: [consumer], limit: {quota: 200, window: 1d}, algorithm: sliding_window}
  - {name: log, match: {paths: [/log]}, partition: [consumer], limit: {quota: 200, window: 1d}, algorithm: sliding_log}
`})
	policies := []string{"day", "fixed", "sliding", "log"}
	const burst, bursts = 20, 4
	for n := range bursts {
		for _, policy := range policies {
			for range burst {
				if status := w.once(n%2, "/"+policy); status != http.StatusOK {
					t.Errorf("%s: %d in burst %d", policy, status, n+1)
				}
			}
		}
		time.Sleep(2 * time.Second)
	}
	for _, policy := range policies {
		var b struct{ Level, Used, Leased, Given int64 }
		err := stack.Await(w.within(patience), "the return of unused tokens", func(context.Context) error {
			b = w.key(http.MethodGet, policy, "").Buckets[0]
			if left := int64(200 - burst*bursts); b.Level < left || b.Level > left+1 || b.Used+b.Leased != 200-b.Level {
				return fmt.Errorf("%s: %d requests, and %+v", policy, burst*bursts, b)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if b = w.key(http.MethodPost, policy+"/reset", `{"reason": "all of it"}`).Buckets[0]; b.Level+b.Leased != 200 {
			t.Errorf("%s: after a reset %+v", policy, b)
		}
	}
}

// once sends one request of alice to an Envoy, and returns its status.
func (w *world) once(envoy int, path string) (status int) {
	w.t.Helper()
	err := stack.Await(w.within(patience), "an answer", func(ctx context.Context) error {
		r := request(http.MethodGet, w.envoys[envoy].URL()+path, "x-api-key", "alice")
		answer, err := http.DefaultClient.Do(r.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		status = answer.StatusCode
		return answer.Body.Close()
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return status
}
