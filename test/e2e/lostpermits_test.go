package e2e

import (
	"testing"
	"time"
)

// Redis loses who holds permits, under Envoys whose clients ask for more than there are: each Envoy
// has its share in flight in every second, both together never more than the limit, and after it
// all can be had again.
func TestSharesAreInFlightWhileRedisLosesPermits(t *testing.T) {
	t.Parallel()
	up := &rushUpstream{}
	w := start(t, setup{envoys: 2, workers: 2, handler: up, policies: fleetPlaces})
	r := w.rushing(up)
	r.watch("before", 3*time.Second, fleetLimit-3, fleetLimit)
	for what, lose := range map[string]func(){
		"FLUSHALL":               func() { w.redis.Do("FLUSHALL") },
		"another process, empty": w.redis.Restart,
	} {
		up.peaks()
		lose()
		for second := range 3 {
			r.watch(what, time.Second, fleetLimit/2, fleetLimit)
			for envoy, most := range up.peaks() {
				// Both had as many before, but for one or two that the other one had.
				if most < fleetLimit/2-2 {
					t.Errorf("%s, second %d: Envoy %d has %d in flight at most", what, second, envoy, most)
				}
			}
		}
		r.watch(what+", three seconds later", time.Second, fleetLimit-3, fleetLimit)
	}
	r.end()
	<-r.done
	w.awaitUsed(fleetLimit, 0)
}
