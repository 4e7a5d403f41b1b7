package rls

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// NodeName is the node id in reports and lease requests.
const NodeName = "rls"

// askStore sends all hits to the store in one request. If the store cannot decide, on_failure does.
// An error means that the caller has gone.
func (d *decision) askStore(ctx context.Context) error {
	d.items = d.items[:0]
	for i := range d.hits {
		d.addItem(&d.hits[i])
	}
	d.joinItems(0)
	if !d.service.asking.Take() {
		d.decideByShares()
		return nil
	}
	defer d.service.asking.Leave()
	answers, err := d.service.grantOne(ctx, d.view.Version, d.items)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if err != nil {
		d.fallBack(d.service.failing.noteFailure(d.service.config.Now()))
		return nil
	}
	d.service.failing.noteAnswer()
	d.readAnswers(answers)
	return nil
}

// addItem adds a hit to the request. Hits of one bucket share an item, since a group must not
// contain a bucket twice.
func (d *decision) addItem(h *hit) {
	for i := range d.items {
		it := &d.items[i]
		if it.Bucket == h.Key {
			h.item = i
			if it.Waiting == 0 && h.cost > 0 {
				it.Waiting, it.Cost = 1, h.cost
			} else if h.cost > 0 {
				it.Cost = min(it.Cost+h.cost, quota.MaxUnits)
			}
			return
		}
	}
	h.item = len(d.items)
	d.items = append(d.items, h.leaseItem())
}

// leaseItem returns the item with the hit's cost. A hit that only looks asks for no tokens.
func (h *hit) leaseItem() wire.LeaseItem {
	it := calls.Item(&h.Hit, h.policy, &h.limit, h.consumer, h.revision)
	// A cost above the burst is refused; its exact size makes no difference.
	it.Waiting, it.Cost = 1, min(h.cost, h.limit.Params.Burst+1)
	if h.cost == 0 {
		it.Waiting, it.Cost = 0, 1
	}
	return it
}

// joinItems makes the items from an index on one group.
func (d *decision) joinItems(from int) {
	for i := from; i < len(d.items); i++ {
		d.items[i].Joined = i < len(d.items)-1
	}
}

// readAnswers decides the hits by the answers of the store. on_failure decides the hits of a bucket
// whose part of the store is away; the store has answered the other buckets without it. If the
// policy set has just been replaced, the store has granted nothing, and on_failure decides all
// hits.
func (d *decision) readAnswers(answers []wire.LeaseAnswer) {
	unknown := false
	for i := range answers {
		unknown = unknown || answers[i].State == wire.ItemUnknown
	}
	if unknown {
		d.fallBack(0)
		return
	}
	d.shares = d.shares[:0]
	for i := range answers {
		if a := &answers[i]; a.State == wire.ItemUnavailable {
			d.fallBackItem(i, a.NotBefore)
		} else {
			d.describeAll(i, a)
		}
	}
	d.takeShares()
}

// describeAll describes the hits of one bucket from its answer, in the order of the hits.
func (d *decision) describeAll(item int, a *wire.LeaseAnswer) {
	asked := &d.items[item]
	granted, short := a.Waiting >= asked.Waiting, a.Waiting < asked.Waiting && a.NotBefore > 0
	// left is the number of tokens after the current hit. A refused call is not charged, so its
	// caller sees the tokens before the first hit.
	left := a.Level
	if granted && asked.Waiting > 0 {
		left += asked.Cost
	}
	for i := range d.hits {
		h := &d.hits[i]
		if h.item != item {
			continue
		}
		left -= h.cost
		if granted {
			h.describeBucket(left, a.FullAfter)
			continue
		}
		h.describeBucket(a.Level, a.FullAfter)
		switch {
		case a.State == wire.ItemSuspended:
			h.refuse(policy.ReasonSuspended, policy.ByRequest, quota.Never)
		case short && left < 0:
			h.refuseBy(a.NotBefore)
			h.reason = decide.Blame(h.reason, a.Doubt)
		}
	}
}

// refuseBy refuses a hit whose bucket will have enough tokens after the wait.
func (h *hit) refuseBy(wait quota.Span) {
	h.refuse(decide.BucketReason(wait), policy.ByCentral, wait)
	if wait < quota.Never { // Else it costs too much, or all hits of the bucket do together.
		h.reset = max(h.reset, wait)
	}
}

// describeBucket sets the figures of a bucket that callers see.
func (h *hit) describeBucket(level int64, fullAfter quota.Span) {
	p := h.limit.Params
	h.known, h.remaining = true, min(max(level, 0), p.Burst)
	h.reset = fullAfter
	if !h.limit.Algorithm.Windowed() {
		h.reset = p.ResetAfter(quota.State{Debt: p.UnitsFor(p.Burst - h.remaining)}, 0)
	}
}

// decideByShares decides with this replica's share, since atStore calls ask the store already. It
// does so even if on_failure of a policy is allow: overload must not be a way around the limit. If
// on_failure begins with deny, it refuses.
func (d *decision) decideByShares() {
	d.shares = d.shares[:0]
	for i := range d.hits {
		h := &d.hits[i]
		if h.policy.OnFailure.At(0).Do != policy.StepDeny {
			h.source = policy.ByShare
			d.shares = append(d.shares, h)
		} else {
			h.refuse(policy.ReasonFailure, policy.ByFailureDeny, quota.Second)
		}
	}
	d.takeShares()
}

// toInstant converts a time to the form that buckets use.
func toInstant(t time.Time) quota.Instant { return quota.Instant(t.UnixMicro()) }

// shareOf returns this replica's part of a limit for the time without the store. The replica counts
// as a node that shares the limit; before the first answer it assumes two nodes.
func (d *decision) shareOf(h *hit) quota.Params {
	nodes := d.service.nodes.Load()
	if nodes == 0 {
		nodes = 2
	}
	return lease.Share(h.limit.Params, nodes)
}
