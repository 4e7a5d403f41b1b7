package simulation

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/controlplanetest"
	"github.com/weir-proxy/weir/filter/filtertest"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// While the store is away every probe fails, whatever the node asked for last: a node that took the
// control plane for back would begin its failure ladder anew. When the store is back the node finds
// out.
func TestANodeIsAwayForAsLongAsTheStore(t *testing.T) {
	for _, mode := range []string{"leased", "strict", "optimistic"} {
		t.Run(mode, func(t *testing.T) {
			var due vtimetest.Queue[quota.Instant]
			now := quota.Second
			clock := func() quota.Instant { return quota.Instant(now) }
			store := &controlplanetest.Store{Now: clock}
			wall := func() time.Time { return time.UnixMicro(int64(now)) }
			plane := controlplanetest.New(store, 1, 1, wall, func() float64 { return 0.5 })
			allowed := 0
			node := filtertest.Start(filtertest.Options{
				Name: "node", Boot: 1, Random: 1, Workers: 1, Now: clock,
				Decided: func(d filtertest.Decision) {
					if d.Allowed {
						allowed++
					}
				},
				Call: func(_ int, body []byte, _ quota.Span, done func(int, []byte)) error {
					due.Add(clock()+quota.Instant(quota.Millisecond), func() { done(plane.Lease(0, body)) })
					return nil
				},
			})
			document := fmt.Sprintf("version: weir/v1\npolicies:\n"+
				"  - {name: all, partition: [], limit: {quota: 100, window: 1s}, mode: %s}\n", mode)
			snapshot, _, err := plane.Put(0, []byte(document))
			if err != nil {
				t.Fatal(err)
			}
			if err := node.Apply(0, snapshot, 1); err != nil {
				t.Fatal(err)
			}
			stream := uint32(0)
			// pass lets time pass with a request and a tick every ten milliseconds.
			pass := func(span quota.Span, then func()) {
				for end := now + span; now < end; now += 10 * quota.Millisecond {
					stream++
					node.Request(0, stream, "/")
					node.Tick(0)
					for e, ok := due.Next(clock() + 10_000); ok; e, ok = due.Next(clock() + 10_000) {
						e.Fire()
					}
					then()
				}
			}
			pass(2*quota.Second, func() {})
			if node.Away(0) || allowed == 0 {
				t.Fatalf("before the fault: away %v, %d allowed", node.Away(0), allowed)
			}
			store.Down = true
			down, since := now, quota.Span(0)
			pass(20*quota.Second, func() {
				switch {
				case node.Away(0) && since == 0:
					since = now
				case !node.Away(0) && since != 0:
					t.Fatalf("%d ms after the store went, the node takes it for back", (now-down)/quota.Millisecond)
				}
			})
			if since == 0 || since-down > 2*quota.Second {
				t.Errorf("noticed after %d ms", (since-down)/quota.Millisecond)
			}
			store.Down = false
			pass(5*quota.Second, func() {})
			if node.Away(0) {
				t.Error("the node does not find out that the store is back")
			}
		})
	}
}
