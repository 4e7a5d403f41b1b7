package leases_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A part of the store that is away makes its own items unavailable for the announced time, however
// often. The breaker of the whole store does not count it, and only grants are measured.
func TestAPartOfTheStoreIsAway(t *testing.T) {
	w := newWorld(t)
	w.put(1, leased, strict)
	w.current = 1
	w.storeErr = &leases.Partial{Away: []time.Duration{0, 3 * time.Second, 0}, Cause: errors.New("away")}
	breakers := breaker.NewGroup(time.Now, func() float64 { return 0 }, func(c breaker.Change) { t.Errorf("%+v", c) })
	measured := map[string]int64{}
	config := w.config(time.Now)
	config.Breakers = breakers
	config.Meter = func(u leases.Use) { measured[u.Policy.Name] += u.Tokens }
	s := leases.New(config)
	for range 10 {
		reply, err := s.Grant(t.Context(),
			wire.LeaseRequest{Version: 1,
				Items: []wire.LeaseItem{item(1, 0, 2, 0), item(2, 1, 3, 0), item(3, 1, 4, 0)}})
		if err != nil {
			t.Fatal(err)
		}
		got := reply.Items
		if got[0].Waiting != 2 || got[2].Waiting != 4 ||
			got[1] != (wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: 3 * quota.Second}) {
			t.Errorf("%+v", got)
		}
	}
	if measured["leased"] != 20 || measured["strict"] != 40 {
		t.Errorf("measured %v", measured)
	}
}
