package leases_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/grant/regions"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// half is a region with a part of every policy.
type half struct {
	part      regions.Part
	known     bool
	refreshed func()
	wanted    map[string]int64
}

func (h *half) Part(string) (regions.Part, bool) { return h.part, h.known }
func (h *half) Want(name string, tokens int64)   { h.wanted[name] += tokens }
func (h *half) Nodes(own int64) int64            { return 2 * own }
func (h *half) Refresh(context.Context) error    { h.refreshed(); return nil }

func newHalf() *half {
	return &half{part: regions.Part{Rate: 400, Burst: 500, Epoch: 7}, known: true, refreshed: func() {},
		wanted: map[string]int64{}}
}

func (w *world) askIn(h *half, items ...wire.LeaseItem) (wire.LeaseReply, error) {
	config := w.config(time.Now)
	config.Regions = h
	return leases.New(config).Grant(w.t.Context(), wire.LeaseRequest{Version: w.current, Items: items})
}

// A region grants its part of rate and burst; its nodes, which know the whole limit, hold tokens
// for as long as that says, and hear how many nodes would share the whole.
func TestARegionGrantsItsPart(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(3, leased)
	w.current = 3
	reply, err := w.askIn(h, item(1, 0, 80, 100))
	if err != nil || reply.Items[0].Waiting != 50 || reply.Items[0].Keep != 0 || reply.Nodes != 6 {
		t.Errorf("%+v, %v", reply, err)
	}
	a := w.asked[0][0].Ask
	if a.Params != (quota.Params{Num: 1, Den: 1_500_000, Burst: 50}) || a.Version != 3<<24|7 ||
		a.Hold != 3*quota.Second || a.Keep != 50 || a.Nodes != 3 {
		t.Errorf("asked %+v", a)
	}
	if h.wanted["leased"] != 180 {
		t.Errorf("wanted %v", h.wanted)
	}
}

// A request that costs more than the region's part of the burst never passes: 51 where half of 100
// may be granted.
func TestACostAboveThePartIsRefusedForEver(t *testing.T) {
	for _, document := range []string{leased, strict,
		"name: log, partition: [], algorithm: sliding_log, limit: {quota: 100, window: 1m}"} {
		w, h := newWorld(t), newHalf()
		h.part.Rate = 500 // The quota of a window is split, and moves.
		w.put(1, document)
		w.current = 1
		for cost, want := range map[int64]wire.LeaseAnswer{
			50: {Waiting: 1}, 51: {NotBefore: quota.Never}, 100: {NotBefore: quota.Never},
		} {
			reply, err := w.askIn(h, wire.LeaseItem{Bucket: keyhash.Key{byte(cost)}, Waiting: 1, Cost: cost})
			if err != nil {
				t.Fatal(err)
			}
			if got := reply.Items[0]; got.Waiting != want.Waiting || got.NotBefore != want.NotBefore {
				t.Errorf("%s\ncost %d: %+v, want %+v", document, cost, got, want)
			}
		}
	}
}

// Another replica has granted by a newer part already: this one reads it and asks again.
func TestAnOldPartIsRefreshed(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(1, strict)
	w.current = 1
	newer := *h
	newer.part = regions.Part{Rate: 300, Burst: 500, Epoch: 8}
	if _, err := w.askIn(&newer, item(1, 0, 1, 0)); err != nil {
		t.Fatal(err)
	}
	h.refreshed = func() { h.part = newer.part }
	reply, err := w.askIn(h, item(1, 0, 1, 0))
	if err != nil || states(reply) != "1+0 " || len(w.asked) != 3 {
		t.Errorf("answers %s after %d calls: %v", states(reply), len(w.asked), err)
	}
}

func TestNothingIsGrantedWhileThePartIsNotKnown(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(1, leased)
	w.current, h.known = 1, false
	if _, err := w.askIn(h, item(1, 0, 1, 0)); !errors.Is(err, leases.ErrUnavailable) || len(w.asked) != 0 {
		t.Errorf("%v after %d calls", err, len(w.asked))
	}
}

// The control plane decides on requests of an optimistic bucket and tells nodes its debt. It leases
// no tokens of it. Half of the limit is this region's.
func TestAnOptimisticBucketIsAskedAbout(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(1, "name: optimistic, partition: [], limit: {quota: 100, window: 1m}, mode: optimistic")
	w.current = 1
	for i, c := range []struct {
		item    wire.LeaseItem
		state   wire.ItemState
		granted int64
	}{
		{wire.LeaseItem{Waiting: 1, Cost: 40, Keep: 5}, wire.ItemGranted, 1},
		{wire.LeaseItem{Waiting: 1, Cost: 40}, wire.ItemGranted, 0},
		{wire.LeaseItem{Cost: 1}, wire.ItemGranted, 0}, // A look.
		{wire.LeaseItem{Cost: 1, Keep: 5}, wire.ItemUnknown, 0},
	} {
		c.item.Bucket = [16]byte{1}
		reply, err := w.askIn(h, c.item)
		if err != nil {
			t.Fatal(err)
		}
		got := reply.Items[0]
		if got.State != c.state || got.Waiting != c.granted || got.Keep != 0 {
			t.Errorf("item %d: %+v, want %+v", i, got, c)
		}
		if known := got.State == wire.ItemGranted; known != (got.Debt > 0) {
			t.Errorf("item %d: a debt of %d", i, got.Debt)
		}
	}
}

// The debt of an optimistic bucket is sent as the nodes count it: they see the level that the part
// has.
func TestTheDebtOfAPartIsReportedInWholes(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(1, "name: optimistic, partition: [], limit: {quota: 100, window: 1m}, mode: optimistic")
	w.current = 1
	used := wire.LeaseItem{Kind: wire.KindReport, Bucket: keyhash.Key{1}, Used: 20, Cost: 1}
	reply, err := w.askIn(h, used)
	whole := w.sets[1].Set.Policies[0].Limits[0].Params
	if level := whole.Burst - reply.Items[0].Debt/whole.Den; err != nil || level != 30 || reply.Items[0].Level != 30 {
		t.Errorf("the nodes see a level of %d: %+v, %v", level, reply, err)
	}
}

// If callers bring figures of their own, the debt is in units of the whole limit's largest figures.
// It leaves the level that the part of the caller's own figures has.
func TestTheDebtOfAPartIsInUnitsOfTheLargestFigures(t *testing.T) {
	w, h := newWorld(t), newHalf()
	w.put(1, "name: optimistic, partition: [], limit: {quota: {jwt: rpm, max: 1000, default: 100}, window: 1m}, "+
		"mode: optimistic")
	w.current = 1
	used := wire.LeaseItem{Kind: wire.KindReport, Bucket: keyhash.Key{1}, Used: 20, Cost: 1, Quota: 100, Burst: 100}
	reply, err := w.askIn(h, used)
	largest := w.sets[1].Set.Policies[0].Limits[0].Params
	if level := 100 - reply.Items[0].Debt/largest.Den; err != nil || level != 30 || reply.Items[0].Level != 30 {
		t.Errorf("a node sees a level of %d: %+v, %v", level, reply, err)
	}
}
