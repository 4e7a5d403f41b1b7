package leases_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/wire"
)

// While version 2 is rolled out, nodes of both versions ask. A limit that both versions share is
// one bucket. A limit that differs has a ledger for each version, which charges the other ledger.
func TestRollout(t *testing.T) {
	const tenMore = "name: leased, partition: [], limit: {quota: 110, window: 1m}"
	w := newWorld(t)
	w.put(1, leased, strict, local, "name: gone, partition: [], limit: {quota: 1, window: 1s}",
		"name: counted, partition: [], limit: {quota: 1, window: 1s}, algorithm: fixed_window")
	w.put(2, strict, tenMore, "name: local, partition: [], limit: {quota: 7, window: 1s}",
		"name: new, partition: [], limit: {quota: 3, window: 1s}",
		"name: counted, partition: [], limit: {quota: 2, window: 1s}")
	w.current, w.stored, w.draft = 1, 1, 2
	s := leases.New(w.config(time.Now))
	for i, c := range []struct {
		version uint64
		limit   uint32
		want    string // the figures of the item and of its twin
	}{
		{1, 0, "100@1 twin 110@2"},
		{2, 1, "draft 110@2 twin 100@1"},
		{1, 1, "100@1"},
		{2, 0, "100@1"}, // The same limit at another index: one bucket for both.
		{1, 2, "unknown"},
		{2, 2, "7@2"}, // Central in the draft alone.
		{1, 3, "1@1"},
		{2, 3, "3@2"},
		{1, 4, "1@1"}, // Windows and tokens have nothing in common.
		{2, 4, "2@2"},
	} {
		w.asked = nil
		reply, err := s.Grant(t.Context(),
			wire.LeaseRequest{Version: c.version, Items: []wire.LeaseItem{item(byte(i), c.limit, 1, 0)}})
		if err != nil {
			t.Fatal(err)
		}
		got := "unknown"
		if reply.Items[0].State != wire.ItemUnknown {
			it := w.asked[0][0]
			got = fmt.Sprintf("%d@%d", it.Ask.Params.Burst, it.Ask.Version>>24)
			if it.Draft {
				got = "draft " + got
			}
			if it.Twin != nil {
				got += fmt.Sprintf(" twin %d@%d", it.Twin.Params.Burst, it.Twin.Version>>24)
			}
		}
		if got != c.want {
			t.Errorf("limit %d of version %d: %s, want %s", c.limit, c.version, got, c.want)
		}
	}
	// It is taken back: nodes that still have it are decided by the version in force.
	w.asked, w.draft = nil, 0
	if _, err := s.Grant(t.Context(),
		wire.LeaseRequest{Version: 2, Items: []wire.LeaseItem{item(99, 1, 1, 0)}}); err != nil {
		t.Fatal(err)
	}
	if it := w.asked[0][0]; it.Twin != nil || it.Draft || it.Ask.Params.Burst != 100 {
		t.Errorf("after the end: %+v", it)
	}
}
