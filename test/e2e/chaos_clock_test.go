package e2e

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/redistest"
)

// The clock of Redis steps forward: a bucket gets what the step would have earned, its burst at most. It steps back: a bucket gets
// nothing until the clock is where it was.
func TestChaosTheClockOfRedisJumps(t *testing.T) {
	clock := redistest.NewClock(t)
	w := start(t, setup{envoys: 2, alone: true})
	w.redis = clock.Start()
	w.serve.RedisURL = w.redis.URL()
	w.startControlPlane()
	w.awaitApplied(w.apply(chaotic))
	during := either(2*time.Second, 5*time.Second)
	for range either(1, 5) {
		denies := w.crowd("/denies", 100)
		time.Sleep(during)
		clock.Set(time.Hour)
		time.Sleep(during)
		mustHold(t, "an hour forward", denies.end(), chaoticBurst, chaoticRate, chaoticBurst, 1)
		if m := w.measured(w.envoys[0]); m["ladder.step"] != 0 {
			t.Errorf("a step of the clock is not a failure: %v", m)
		}
		denies = w.crowd("/denies", 100)
		time.Sleep(during / 2)
		clock.Set(0)
		time.Sleep(during)
		mustHold(t, "an hour back", denies.end(), chaoticBurst, chaoticRate, 0, 0)
		denies = w.crowd("/denies", 100)
		time.Sleep(during)
		got := denies.end()
		a := got.samples[429]
		t.Logf("after the step back: %v; Retry-After %s, RateLimit %s", got, a.Get("Retry-After"), a.Get("RateLimit"))
		clock.Set(time.Hour)
		denies = w.crowd("/denies", 100)
		time.Sleep(during)
		t.Logf("forward again: %v", denies.end())
	}
}
