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

// NodeName is what reports and lease requests name as the node.
const NodeName = "rls"

// ask has the store decide all hits together, or what on_failure says where the store cannot. The
// error is the caller's: it went away.
func (d *decision) ask(ctx context.Context) error {
	d.items = d.items[:0]
	for i := range d.hits {
		d.add(&d.hits[i])
	}
	d.join(0)
	if !d.service.asking.Take() {
		d.overloaded()
		return nil
	}
	defer d.service.asking.Leave()
	answers, err := d.service.grant(ctx, d.view.Version, d.items)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if err != nil {
		d.fallBack(d.service.failing.since(d.service.config.Now()))
		return nil
	}
	d.service.failing.answered()
	d.learn(answers)
	return nil
}

// add asks for the tokens of a hit. Hits of one bucket are asked for together, since a group has no
// bucket twice.
func (d *decision) add(h *hit) {
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
	d.items = append(d.items, h.lease())
}

// lease is what a hit asks of its bucket. To look is to ask for nothing.
func (h *hit) lease() wire.LeaseItem {
	it := calls.Item(&h.Hit, h.policy, &h.limit, h.consumer, h.revision)
	// More than the bucket can ever hold is too much, however much it is.
	it.Waiting, it.Cost = 1, min(h.cost, h.limit.Params.Burst+1)
	if h.cost == 0 {
		it.Waiting, it.Cost = 0, 1
	}
	return it
}

// join makes the items from an index on one group.
func (d *decision) join(from int) {
	for i := from; i < len(d.items); i++ {
		d.items[i].Joined = i < len(d.items)-1
	}
}

// learn takes in the answers. A bucket whose part of the store is away goes by on_failure, and the
// others were granted without it. Where the policy set has just been replaced, nothing was granted,
// and on_failure decides too.
func (d *decision) learn(answers []wire.LeaseAnswer) {
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
			d.stepOf(i, a.NotBefore)
		} else {
			d.describeAll(i, a)
		}
	}
	d.takeShares()
}

// describeAll gives the hits of one bucket their part of its answer: the first of them come first.
func (d *decision) describeAll(item int, a *wire.LeaseAnswer) {
	asked := &d.items[item]
	granted, short := a.Waiting >= asked.Waiting, a.Waiting < asked.Waiting && a.NotBefore > 0
	// left is what the bucket would hold behind the hit at hand. A refused call is charged nowhere,
	// so that what callers see is what the bucket held before the first.
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
			h.describe(left, a.FullAfter)
			continue
		}
		h.describe(a.Level, a.FullAfter)
		switch {
		case a.State == wire.ItemSuspended:
			h.refuse(policy.ReasonSuspended, policy.ByRequest, quota.Never)
		case short && left < 0:
			h.refuseBy(a.NotBefore)
			h.reason = decide.Blame(h.reason, a.Doubt)
		}
	}
}

// refuseBy refuses a hit whose bucket lacks what it costs for a time.
func (h *hit) refuseBy(wait quota.Span) {
	h.refuse(decide.BucketReason(wait), policy.ByCentral, wait)
	if wait < quota.Never { // Else it costs too much, or all hits of the bucket do together.
		h.reset = max(h.reset, wait)
	}
}

// describe fills in what callers see of a bucket.
func (h *hit) describe(level int64, fullAfter quota.Span) {
	p := h.limit.Params
	h.known, h.remaining = true, min(max(level, 0), p.Burst)
	h.reset = fullAfter
	if !h.limit.Algorithm.Windowed() {
		h.reset = p.ResetAfter(quota.State{Debt: p.UnitsFor(p.Burst - h.remaining)}, 0)
	}
}

// overloaded has this replica's share decide, as more calls are with the store than may be: also
// where the policy would let all through, since overload must be no way around the limit.
func (d *decision) overloaded() {
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

// instant is a time as buckets have it.
func instant(t time.Time) quota.Instant { return quota.Instant(t.UnixMicro()) }

// share is the part of a limit with which this replica goes on alone. It counts among the nodes
// that share the limit; before the first answer it takes itself for one of two.
func (d *decision) share(h *hit) quota.Params {
	nodes := d.service.nodes.Load()
	if nodes == 0 {
		nodes = 2
	}
	return lease.Share(h.limit.Params, nodes)
}
