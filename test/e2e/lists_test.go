package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// A list of limits is edited under load, in the modes leased and local: a limit is put before the
// one that is used, the two are turned, a window is changed, all go over to tiers, the caller's
// tier changes, and back. Nothing that was used is forgotten, and what is left can be used.
func TestAListIsEditedUnderLoad(t *testing.T) {
	t.Parallel()
	document := func(limits string) string {
		text := "\nversion: weir/v1\nidentity: {consumer: [{header: x-api-key}], default_tier: free, " +
			"tier: [{header: x-tier, trusted: true}]}\ntiers: [free, gold]\npolicies:\n"
		for _, mode := range []string{"leased", "local"} {
			text += fmt.Sprintf("  - {name: %s, match: {paths: [/%s]}, partition: [consumer], %s, mode: %s, "+
				"on_failure: {local_for: 0s, then: deny}}\n", mode, mode, limits, mode)
		}
		return text
	}
	const short = "{quota: 100000, window: 1s}"
	w := start(t, setup{workers: 2, policies: document("limit: {quota: 100, window: 24h}")})
	busy := load{clients: 8, rate: 500, request: func(i int) *http.Request {
		path := []string{"/leased", "/local"}[i%2]
		return request(http.MethodGet, w.envoys[0].URL()+path, "x-api-key", fmt.Sprint("other-", i%50))
	}}.background(w.ctx)
	total := map[string]int64{}
	for _, step := range []struct {
		limits, tier string
		total        int64
	}{
		{"", "free", 100},
		{"limit: [" + short + ", {quota: 100, window: 24h}]", "free", 100},
		{"limit: [{quota: 120, window: 24h}, " + short + "]", "free", 120},
		{"limit: [{quota: 120, window: 24h}, {quota: 100000, window: 2s}]", "free", 120},
		{"limit: [{quota: 120, window: 48h}, {quota: 100000, window: 2s}]", "free", 120},
		{"limits: {free: [" + short + ", {quota: 130, window: 48h}], gold: {quota: 160, window: 48h}}", "free", 130},
		{"", "gold", 160},
		{"", "free", 160},
		{"limits: {free: {quota: 170, window: 48h}, gold: [{quota: 100, window: 48h}, " + short + "]}", "gold", 160},
		{"limit: {quota: 180, window: 24h}", "free", 180},
	} {
		if step.limits != "" {
			pushed := time.Now()
			w.awaitApplied(w.apply(document(step.limits)))
			mustTake(t, step.limits, pushed, time.Now(), 2*time.Second)
		}
		for _, mode := range []string{"leased", "local"} {
			got := load{clients: 8, total: 250, request: func(int) *http.Request {
				return request(http.MethodGet, w.envoys[0].URL()+"/"+mode, "x-api-key", "alice", "x-tier", step.tier)
			}}.run(w.ctx)
			got.mustBe(t, 200, 429)
			total[mode] += got.statuses[200]
			// A token comes in minutes, and one that is leased when its limit is lowered comes
			// back.
			late := w.late()
			if n := total[mode]; n > step.total+2 || n < step.total-step.total/50-late {
				t.Errorf("%s, %s as %s: %d have passed, want %d", mode, step.limits, step.tier, n, step.total)
			}
		}
		t.Logf("%s as %s: %v", step.limits, step.tier, total)
	}
	busy.end().mustBe(t, 200, 429)
}
