package leases_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/shared/wire"
)

// A node asks again unless it is answered. So it learns the charge of a store that answers late,
// which counts as a failure of the store all the same. A look charges nothing, and ends like the
// looks of other callers.
func TestANodeLearnsWhatALateStoreHasCharged(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased)
	w.current, w.block = 1, true
	config := w.config(time.Now)
	config.Breakers = breaker.NewGroup(time.Now, func() float64 { return 0.5 }, nil)
	s := leases.New(config)
	for _, c := range []struct {
		waiting int64
		late    int
	}{{2, 1}, {0, 0}} {
		late := 0
		request := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, c.waiting, 0)}}
		begin := time.Now()
		reply, err := s.GrantOnce(t.Context(), request, func() { late++ })
		answered := err == nil && reply.Items[0].State == wire.ItemGranted && reply.Items[0].Waiting == c.waiting
		if unavailable := errors.Is(err, leases.ErrUnavailable); answered != (c.late > 0) || unavailable == answered {
			t.Errorf("%d wait: %+v, %v", c.waiting, reply, err)
		}
		if late != c.late || time.Since(begin) < leases.Patience || config.Breakers.Failing(leases.StoreName) == 0 {
			t.Errorf("%d wait: late %d times, the store fails for %v", c.waiting, late,
				config.Breakers.Failing(leases.StoreName))
		}
	}
	request := wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{item(1, 0, 1, 0)}}
	if _, err := s.Grant(t.Context(), request); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("who does not ask again waits on: %v", err)
	}
}
