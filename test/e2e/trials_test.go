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

// Policies in shadow say what enforcing would do: of 300 requests at once and ten more, five a
// minute would pass, whichever of two Envoys they meet, and nothing is left open. No request is
// refused.
func TestTrialsForetellWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := start(t, setup{envoys: 2, policies: `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: tried-leased, match: {paths: [/leased]}, partition: [consumer], limit: {quota: 5, window: 1m}, enforcement: shadow}
  - {name: tried-strict, match: {paths: [/strict]}, partition: [consumer], limit: {quota: 5, window: 1m}, mode: strict, enforcement: shadow}
  - {name: tried-draft, match: {paths: [/draft]}, partition: [consumer], limit: {quota: 1000, window: 1m}, candidate: {limit: {quota: 5, window: 1m}}}
`})
	begun := time.Now()
	for _, path := range []string{"/leased", "/strict", "/draft"} {
		for _, l := range []load{{clients: 50, total: 300}, {clients: 1, total: 10}} {
			l.request = func(i int) *http.Request {
				return request(http.MethodGet, w.envoys[i%2].URL()+path, "x-api-key", "alice")
			}
			got := l.run(w.ctx)
			got.mustBe(t, 200)
		}
	}
	for _, c := range []struct{ policy, kind string }{
		{"tried-leased", "shadow"}, {"tried-strict", "shadow"}, {"tried-draft", "candidate"},
	} {
		w.await(c.policy+" to have foretold", func(ctx context.Context) error {
			sum := map[string]int64{}
			for _, outcome := range []string{"allowed", "refused", "undetermined"} {
				for _, e := range w.envoys {
					n, err := counterOf(ctx, e, "weir.policy."+c.policy+".outcome."+c.kind+"_"+outcome+".decisions")
					if err != nil {
						return err
					}
					sum[outcome] += n
				}
			}
			most := 5 + int64(time.Since(begun)/(12*time.Second)) + 1
			if sum["allowed"]+sum["refused"]+sum["undetermined"] != 310 || sum["undetermined"] > 3 ||
				sum["allowed"] < 5 || sum["allowed"] > most {
				return fmt.Errorf("it has counted %v, and at most %d may pass", sum, most)
			}
			return nil
		})
	}
}

// counterOf is a counter of the filter's, 0 if it was never counted.
func counterOf(ctx context.Context, e *stack.Envoy, name string) (int64, error) {
	content, err := e.Admin(ctx, "/stats?filter=^wasmcustom\\."+strings.ReplaceAll(name, ".", `\.`)+"$")
	if err != nil {
		return 0, err
	}
	_, value, found := strings.Cut(strings.TrimSpace(string(content)), ": ")
	if !found {
		return 0, nil
	}
	return strconv.ParseInt(value, 10, 64)
}
