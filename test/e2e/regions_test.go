package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

const regional = `
version: weir/v1
policies:
  - name: everyone
    match: {paths: [/leased]}
    partition: []
    limit: {quota: 1000, window: 1s}
    mode: leased
`

// startRegions starts two regions with a Redis, a control plane and an Envoy each, and a Redis
// between them.
func startRegions(t *testing.T) (eu, us *world, between *redistest.Server) {
	t.Helper()
	between = redistest.Start(t)
	region := func(name string) *world {
		w := start(t, setup{alone: true})
		w.redis = redistest.Start(t)
		w.serve.RedisURL = w.redis.URL()
		w.serve.Env = []string{"WEIR_REGION_NAME=" + name, "WEIR_REGION_WEIGHTS=eu=1;us=1",
			"WEIR_REGION_URL=" + between.URL()}
		w.startControlPlane()
		w.awaitApplied(w.apply(regional))
		return w
	}
	return region("eu"), region("us"), between
}

// rate returns the share of a policy's rate that a region uses, in thousandths.
func (w *world) rate(ctx context.Context, policy string) (int64, error) {
	answer, err := w.controlPlane.Call(ctx, "GET", "/v1/regions", nil)
	if err != nil {
		return 0, err
	}
	var view struct {
		Region  string           `json:"region"`
		Weights map[string]int64 `json:"weights"`
		Moved   map[string]struct {
			Using int64 `json:"using"`
		} `json:"moved"`
	}
	if err := json.Unmarshal(answer.Body, &view); err != nil {
		return 0, err
	}
	if moved, ok := view.Moved[policy]; ok {
		return moved.Using, nil
	}
	return view.Weights[view.Region], nil
}

// mustRate returns the rate at a control plane that must answer.
func (w *world) mustRate(policy string) int64 {
	w.t.Helper()
	using, err := w.rate(w.t.Context(), policy)
	if err != nil {
		w.t.Fatal(err)
	}
	return using
}

// Two regions together let through as much as one region would. While only one has clients, the
// rate moves to it.
func TestRegionsShareAQuota(t *testing.T) {
	t.Parallel()
	eu, us, between := startRegions(t)
	both := func(during time.Duration) tally {
		return sum(together(t.Context(),
			load{url: eu.envoys[0].URL() + "/leased", clients: 32, rate: 1500, during: during},
			load{url: us.envoys[0].URL() + "/leased", clients: 32, rate: 1500, during: during}))
	}
	mustAdmit(t, both(full(5*time.Second)), 1000, 1000, 0.9)

	// The whole time counts: while shares are on their way between the regions nothing is admitted
	// twice.
	one := load{url: eu.envoys[0].URL() + "/leased", clients: 32, rate: 1500,
		during: time.Minute}.background(t.Context())
	begin := time.Now()
	if err := stack.Await(eu.within(time.Minute), "eu to use more than its half", func(ctx context.Context) error {
		if using, err := eu.rate(ctx, "everyone"); err != nil || using < 600 {
			return fmt.Errorf("it uses %d of 1000: %v", using, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("eu used more than its half %.0f s after us had no more clients", time.Since(begin).Seconds())
	after := both(full(5 * time.Second))
	alone := one.end()
	mustAdmit(t, sum([]tally{alone, after}), 1000, 1000, 0.4)

	// Without the document every region keeps its shares, and goes on limiting. The sum may be less
	// than the whole: a part that one region gave away, and no region has taken, is used by none.
	regions := []*world{eu, us}
	var had [2]int64
	for i, region := range regions {
		had[i] = region.mustRate("everyone")
	}
	between.Kill()
	got := both(full(5 * time.Second))
	var sum int64
	for i, region := range regions {
		has := region.mustRate("everyone")
		// A round that was under way at the end gives one step away.
		if has > had[i] || has < had[i]-100 {
			t.Errorf("region %d uses %d of 1000 without the document, and used %d", i, has, had[i])
		}
		sum += has
	}
	t.Logf("the regions use %d of 1000", sum)
	mustAdmit(t, got, 1000, 1000, 0.7*float64(sum)/1000)
}
