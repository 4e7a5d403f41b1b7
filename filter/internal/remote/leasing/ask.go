package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Ask queues the tickets of one request. They are granted together or not at all. They have one
// Stream and one Deadline; Ask reads both from the first ticket. Ask reports false, and queues
// nothing, if the room's maximum of requests waits already, or if the tickets are more than
// wire.MaxItems. Trials have a maximum of their own, MaxWaiting. Flush sends the call.
func (c *Client) Ask(now quota.Instant, tickets ...*Ticket) bool {
	full := c.queue.waiting >= c.room.maxWaiters(now)
	if tickets[0].Trial != 0 {
		full = c.queue.trying >= MaxWaiting
	}
	if full || len(tickets) > wire.MaxItems {
		return false
	}
	deadline := tickets[0].Deadline
	if deadline == 0 {
		deadline = now + quota.Instant(lease.Deadline)
	}
	for _, t := range tickets {
		t.Outcome, t.Deadline = Waiting, deadline
	}
	c.queue.addRequest(tickets)
	return true
}

// Prefetch notes tokens to keep. The first tick at or after by asks for them, or an earlier call
// that the next request for the bucket causes. While the control plane is away it notes nothing:
// tokens that cannot be asked for would only add up.
func (c *Client) Prefetch(need Need, keep int64, by quota.Instant, spent [2]lease.Spent) {
	if _, away := c.Health.Away(); !away {
		c.queue.keepTokens(need, keep, by, spent)
	}
}

// Report notes that an optimistic bucket has something to report at an instant. Reports that are
// due leave at once, or when the reports under way are answered.
func (c *Client) Report(now quota.Instant, need Need, at quota.Instant) {
	c.reports.note(need, at)
	if at <= now && c.reports.underWay == 0 {
		c.sendReports(now)
	}
}

// Cancel withdraws a stream's tickets because its client went away. Tokens that arrive for them
// serve the next request.
func (c *Client) Cancel(stream uint32) { c.queue.cancelStream(stream) }

// GiveBack lets the next requests of this node use the tokens of a granted ticket. The ticket's
// request was refused by another policy, or its client has gone. A turn in a leaky bucket's queue
// is no token and is lost. Tokens that cannot be noted, or that come back too late, count as used.
func (c *Client) GiveBack(now quota.Instant, t *Ticket) {
	need := &t.Need
	switch {
	case need.isLeaky():
	case need.Reserves:
		c.settleUnused(now, need, t.Name, 0, 0)
	case now >= t.Until, t.Term != 0 && c.lastUsedBy(t.Trial != 0).wasReported(&need.Bucket, t.Term):
	case need.Optimistic:
		_ = c.store.Update(bucketstore.Optimistic, need.Bucket, now, &giveBackReported{now, need})
	default:
		lent := lease.Lease{Tokens: need.Cost, Expiry: t.Until, Term: t.Term}
		back := &giveBack{now: now, params: need.Params, lent: lent, inHand: t.inHand, from: t.from}
		if c.store.Update(bucketstore.Leased, need.Bucket, now, back) == nil {
			c.watchTokens(now, need, back.again)
		}
	}
}
