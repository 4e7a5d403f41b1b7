package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Ask queues the tickets of one request, which are granted together or not at all. They have one
// Stream and one Deadline; those of the first count. Ask reports false, and queues nothing, if as
// many requests wait as may, or if no call can carry so many buckets. Trials are bounded apart from
// requests. Flush sends.
func (c *Client) Ask(now quota.Instant, tickets ...*Ticket) bool {
	full := c.queue.waiting >= c.room.waiters(now)
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
	c.queue.join(tickets)
	return true
}

// Prefetch notes tokens to be asked for at the first tick at or after by, or before that with the
// next request that waits for the bucket. While the control plane does not answer it notes nothing:
// tokens that cannot be asked for would only pile up.
func (c *Client) Prefetch(need Need, keep int64, by quota.Instant, spent [2]lease.Spent) {
	if _, away := c.Health.Away(); !away {
		c.queue.keep(need, keep, by, spent)
	}
}

// Report notes that an optimistic bucket has something to report at an instant. What is due leaves
// at once, or when the reports under way are answered.
func (c *Client) Report(now quota.Instant, need Need, at quota.Instant) {
	c.reports.note(need, at)
	if at <= now && c.reports.underWay == 0 {
		c.report(now)
	}
}

// Cancel withdraws a stream's tickets: its client went away. Tokens that come for them serve the
// next request.
func (c *Client) Cancel(stream uint32) { c.queue.cancel(stream) }

// GiveBack lets the next requests of this node use the tokens of a granted ticket whose request was
// refused by another policy, or whose client has gone. A turn in a leaky bucket's queue is no
// token. Tokens that cannot be noted, or that come back too late, count as used.
func (c *Client) GiveBack(now quota.Instant, t *Ticket) {
	need := &t.Need
	switch {
	case need.leaky():
	case need.Reserves:
		c.unused(now, need, t.Name, 0, 0)
	case now >= t.Until, t.Term != 0 && c.lastUsedBy(t.Trial != 0).counts(&need.Bucket, t.Term):
	case need.Optimistic:
		_ = c.store.Update(bucketstore.Optimistic, need.Bucket, now, &giveBackReported{now, need})
	default:
		lent := lease.Lease{Tokens: need.Cost, Expiry: t.Until, Term: t.Term}
		back := &giveBack{now: now, params: need.Params, lent: lent, inHand: t.inHand, from: t.from}
		if c.store.Update(bucketstore.Leased, need.Bucket, now, back) == nil {
			c.watch(now, need, back.again)
		}
	}
}
