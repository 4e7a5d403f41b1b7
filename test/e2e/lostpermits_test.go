package e2e

import (
	"context"
	"fmt"
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
	for what, lose := range map[string]func(){
		"FLUSHALL":               func() { w.redis.Do("FLUSHALL") },
		"another process, empty": w.redis.Restart,
	} {
		r.awaitEven()
		r.watch(what+" is still to come", time.Second, fleetLimit-3, fleetLimit)
		up.peaks()
		lose()
		for second := range 3 {
			r.watch(what, time.Second, fleetLimit/2, fleetLimit)
			for envoy, most := range up.peaks() {
				// But for one or two places that the other one had, as when the wait was over.
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

// awaitEven waits until each Envoy has its share in flight, but for one or two places: whichever
// came first has all of them, and leaves some to the other one when it renews what it holds.
func (r *rushing) awaitEven() {
	r.t.Helper()
	r.await("each Envoy to have its share in flight", func(context.Context) error {
		r.up.peaks()
		time.Sleep(300 * time.Millisecond)
		if most := r.up.peaks(); min(most[0], most[1]) < fleetLimit/2-2 || max(most[0], most[1]) > fleetLimit/2+2 {
			return fmt.Errorf("they have at most %v in flight", most)
		}
		return nil
	})
}
