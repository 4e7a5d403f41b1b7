package leases_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Settlements of strict and leased policies reach the store in one call with the requests' items;
// other settlements are answered as unknown. If the store does not answer, they must be sent again.
func TestSettlements(t *testing.T) {
	w := newWorld(t)
	w.put(1, "name: strict, partition: [], limit: {quota: 5, window: 1m}, algorithm: sliding_log, mode: strict",
		"name: leased, partition: [], limit: {quota: 5, window: 1m}, cost: {reserve: 1, commit: {header: x-used}}",
		"name: local, partition: [], limit: {quota: 5, window: 1m}, mode: local")
	w.current = 1
	service := leases.New(leases.Config{Store: w, Sets: w, Nodes: w, Now: time.Now})
	items := []wire.LeaseItem{
		{Kind: wire.KindSettle, Bucket: keyhash.Key{1}, Limit: 0, Cost: 1, Reserved: 70, Nth: 2, Actual: 9},
		{Bucket: keyhash.Key{1}, Limit: 0, Cost: 1, Waiting: 2, Reserved: 71},
		{Kind: wire.KindSettle, Bucket: keyhash.Key{2}, Limit: 1, Cost: 1, Reserved: 72, Nth: 1},
		{Bucket: keyhash.Key{2}, Limit: 1, Cost: 1, Waiting: 1, Keep: 3, Reserved: 74},
		{Kind: wire.KindSettle, Bucket: keyhash.Key{2}, Limit: 2, Cost: 1, Reserved: 72, Nth: 1},
		{Kind: wire.KindSettle, Bucket: keyhash.Key{3}, Limit: 9, Cost: 1, Reserved: 73, Nth: 1},
	}
	ask := func(items ...wire.LeaseItem) ([]wire.LeaseAnswer, error) {
		reply, err := service.Grant(t.Context(), wire.LeaseRequest{Node: "n", Version: 1, Items: items})
		return reply.Items, err
	}
	answers, err := ask(items...)
	if err != nil {
		t.Fatal(err)
	}
	var states []wire.ItemState
	for _, a := range answers {
		states = append(states, a.State)
	}
	if want := []wire.ItemState{wire.ItemGranted, wire.ItemGranted, wire.ItemGranted,
		wire.ItemGranted, wire.ItemUnknown, wire.ItemUnknown}; !reflect.DeepEqual(states, want) {
		t.Errorf("%v, want %v", states, want)
	}
	var settled []leases.Settlement
	var asked []leases.Item
	for _, it := range w.asked[0] {
		if it.Kind == wire.KindSettle {
			settled = append(settled, it.Settles)
		} else {
			asked = append(asked, it)
		}
	}
	want := []leases.Settlement{{Name: 70, Nth: 2, Actual: 9}, {Name: 72, Nth: 1}}
	if !reflect.DeepEqual(settled, want) {
		t.Errorf("settled %v, want %v", settled, want)
	}
	if len(asked) != 2 || asked[0].Ask.Reserved != 71 || answers[1].Waiting != 2 ||
		asked[1].Ask.Reserved != 74 || asked[1].Ask.Keep != 0 {
		t.Errorf("asked for %+v, answered %+v", asked, answers[1])
	}
	w.storeErr = &leases.Partial{Away: []time.Duration{time.Second, 0}, Cause: errors.New("down")}
	if answers, err = ask(items[:2]...); err != nil || answers[0].State != wire.ItemUnavailable ||
		answers[1].State != wire.ItemGranted {
		t.Errorf("%+v, %v", answers, err)
	}
	w.storeErr = errors.New("down")
	if _, err = ask(items[0]); !errors.Is(err, leases.ErrUnavailable) {
		t.Errorf("a call of settlements alone: %v", err)
	}
}

// A request that costs less than its reservation has not used the rest, and a request that costs
// more has used more: each settlement counts once, when the store takes it.
func TestSettlementsAreMeasured(t *testing.T) {
	w := newWorld(t)
	w.put(1, "name: model, partition: [], limit: {quota: 5000, window: 1m}, "+
		"cost: {reserve: 1000, commit: {header: x-used}}")
	w.current = 1
	var uses []leases.Use
	service := leases.New(leases.Config{Store: w, Sets: w, Nodes: w, Now: time.Now,
		Meter: func(u leases.Use) { uses = append(uses, u) }})
	settle := func(nth, cost, actual int64) wire.LeaseItem {
		return wire.LeaseItem{
			Kind: wire.KindSettle, Bucket: keyhash.Key{1}, Cost: cost, Reserved: 70, Nth: nth, Actual: actual,
		}
	}
	items := []wire.LeaseItem{settle(1, 1000, 20), settle(2, 1000, 1300)}
	request := wire.LeaseRequest{Node: "n", Version: 1, Items: items}
	for range 2 {
		if _, err := service.Grant(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		w.settled = true
	}
	if len(uses) != 2 || uses[0].Returned != 980 || uses[0].Tokens != 0 || uses[1].Tokens != 300 ||
		uses[1].Returned != 0 || uses[0].Bucket != (keyhash.Key{1}) || uses[0].Window == 0 {
		t.Errorf("%+v", uses)
	}
}
