package e2e

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// The clock of Redis steps forward by an hour: a bucket gets the tokens that it would have earned
// in that hour, its burst at most. The clock steps back: no time has passed for the bucket, which
// goes on, and neither Envoy nor control plane makes a caller wait for that hour.
func TestChaosTheClockOfRedisJumps(t *testing.T) {
	t.Parallel()
	clock := redistest.NewClock(t)
	w := start(t, setup{envoys: 2, alone: true})
	w.redis = clock.Start()
	w.serve.RedisURL = w.redis.URL()
	w.startControlPlane()
	w.awaitApplied(w.apply(chaotic))
	denies := w.crowd("/denies", 100)
	time.Sleep(2 * time.Second) // Until nothing is left of the burst.
	denies.end().mustBe(t, 200, 429)
	callers := w.withinLimits(w.envoys...)
	during := either(1500*time.Millisecond, 5*time.Second)
	steps, failures, left := 0, 0, 0.0
	for range either(1, 5) {
		for _, step := range []struct {
			what  string
			off   time.Duration
			extra float64
		}{
			{"an hour forward", time.Hour, chaoticBurst},
			{"an hour back", 0, 0},
			{"another back", -time.Hour, 0},
			{"two forward", time.Hour, chaoticBurst},
			{"two back", -time.Hour, 0},
		} {
			before := w.measured(w.envoys[0])
			denies := w.crowd("/denies", 100)
			time.Sleep(during / 3)
			clock.Set(step.off)
			time.Sleep(during)
			// The bucket is drained. So it can only give the tokens that the rate earns, the tokens
			// of the step, the tokens that were leased or earned before these clients came (far
			// from a burst), and the rest of the earlier step that a busy machine has left.
			const met = chaoticBurst / 4
			rest := mustHold(t, step.what, denies.end(), met, chaoticRate, step.extra+left, 0.5)
			left = min(max(rest-met, 0), chaoticBurst)
			steps++
			if d := difference(w.measured(w.envoys[0]), before); d["ladder.entered_leases"] > 0 {
				t.Logf("%s: calls failed meanwhile: %v", step.what, d)
				failures++
			}
		}
	}
	// On a busy machine calls are late now and then, but not each time that the clock steps.
	if failures == steps {
		t.Errorf("each of %d steps of the clock was a failure", steps)
	}
	noneRefused(t, "steps of the clock", callers)
}
