package leases_test

import (
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/wire"
)

// A quota of 0 is reported as a quota of 0: the quota of a policy, and the quota of a consumer
// whose node does not know it yet. The bucket's counts stay: the figure reaches no ledger.
func TestASuspendedLimitIsSaidToBeOne(t *testing.T) {
	w := newWorld(t).withConsumers(perConsumer)
	p := &people{held: own(0, "other", time.Time{}, 7)}
	ask := of(alice, item(1, 0, 1000, 0), 0)
	w.mustGrant(0, p, of(alice, item(1, 0, 40, 0), 0), 40)
	for revision := uint64(1); revision < 9; revision += 2 {
		p.held = own(revision, "mine", time.Time{}, 0)
		for range 3 {
			if got, states := w.at(0, p, ask); got[0] != 0 || states[0] != wire.ItemSuspended {
				t.Fatalf("%d granted, %v", got[0], states)
			}
		}
		both := []wire.LeaseItem{of(alice, item(1, 0, 1, 0), 0), item(2, 1, 1, 0)}
		both[0].Joined = true
		if got, states := w.at(0, p, both...); got[0]+got[1] != 0 || states[0] != wire.ItemSuspended ||
			states[1] != wire.ItemGranted {
			t.Fatalf("of a request with two limits %v granted, %v", got, states)
		}
		p.held = own(revision+1, "mine", time.Time{}, 100)
		want := int64(0)
		if revision == 1 {
			want = 60
		}
		w.mustGrant(0, p, ask, want)
	}
	p.held = consumers.Knowledge{ExceptionsRevision: 20}
	p.stored = p.held
	w.mustGrant(0, p, ask, 0)
}
