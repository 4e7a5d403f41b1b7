package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Owe notes that a request took its tokens from the node's share. The whole bucket held at most
// holds tokens. T is the ticket with which the request waited before, if it waited. A late answer
// may have charged the tokens already; then Owe notes no debt. If no answer has come yet, the
// tokens are held until the late call ends. Owe returns the reservation to settle if the need
// Reserves and the tokens are not charged already; else nil.
func (c *Client) Owe(now quota.Instant, need Need, t *Ticket, holds int64) (r *Reservation) {
	if t.Charged || t.lateCall.takePrepaid(&need) {
		return nil
	}
	d := c.debts.debtOf(need)
	if d == nil {
		return nil
	}
	c.fadeDebt(d, now)
	if d.tokens == 0 {
		d.fadesFrom = now
	}
	p := need.Params
	if missing := p.Burst - holds; missing > 0 {
		d.fadesFrom = max(d.fadesFrom, now+quota.Instant(need.timeToEarn(missing)))
	}
	if d.tokens += need.Cost; need.Reserves {
		r = d.addReservation(need)
	}
	c.debts.rise(d)
	if call := t.lateCall; call != nil && !call.over {
		d.held += need.Cost
		call.held = append(call.held, heldDebt{d, need.Cost})
	}
	c.chargeSoon()
	return r
}

// takePrepaid reports whether the call's late answer has charged a request's tokens, and uses them
// up. A nil call has none.
func (c *call) takePrepaid(need *Need) bool {
	if c == nil {
		return false
	}
	for i := range c.items {
		it := &c.items[i]
		if it.need.Bucket == need.Bucket && it.prepaid >= need.Cost {
			it.prepaid -= need.Cost
			return true
		}
	}
	return false
}

// Owed returns the number of a bucket's tokens that this VM has not charged yet.
func (c *Client) Owed(now quota.Instant, bucket keyhash.Key) int64 {
	d := c.debts.byBucket[bucket]
	if d == nil {
		return 0
	}
	c.fadeDebt(d, now)
	return d.tokens
}

// chargeSoon lets the next tick charge debts. While calls are late, the tick keeps its slower pace.
func (c *Client) chargeSoon() {
	if !c.room.isPressed() {
		c.debts.next = 0
	}
}

// fadeDebt forgets debt that the bucket has earned back in an outage while it was full: those
// tokens would have been lost. The bucket earns for all nodes, so each node forgets its share.
// While the control plane answers, nothing fades: the debt is charged, and other nodes may use the
// bucket.
func (c *Client) fadeDebt(d *debt, now quota.Instant) {
	if c.debts.away == 0 {
		return
	}
	d.fadesFrom = max(d.fadesFrom, c.debts.away)
	share := lease.Share(d.need.Params, c.Nodes())
	for {
		n := min(share.Earned(quota.Span(now-d.fadesFrom)), d.tokens, share.Burst)
		if n <= 0 {
			d.forgetPaid()
			return
		}
		d.tokens -= n
		d.fadesFrom += quota.Instant(share.ResetAfter(quota.State{Debt: share.UnitsFor(n)}, 0))
	}
}

// askFirst appends to first the items that charge the debts of the call's buckets. First already
// contains the returned tokens, because they have paid a part of the debts.
func (c *Client) askFirst(call *call, first []item) []item {
	if len(c.debts.all) == 0 {
		return first
	}
	for i := range call.items {
		need := call.items[i].need
		d := c.debts.byBucket[need.Bucket]
		if d == nil || len(first)+len(call.items) == wire.MaxItems {
			continue
		}
		if tokens := d.chargeableTokens(call.sent); tokens > 0 {
			need.adoptFigures(&d.need)
			first = append(first, d.chargeItem(need, tokens))
		}
	}
	return first
}

// chargeDebts sends the debts that no request's call has carried, one call at a time. While calls
// are late it sends rarely. It sends nothing if waiting requests use nearly the whole room.
func (c *Client) chargeDebts(now quota.Instant) {
	ds := &c.debts
	if since, away := c.Health.Away(); away {
		ds.away = since
		return
	}
	if ds.away != 0 {
		for _, d := range ds.all {
			c.fadeDebt(d, now)
		}
		ds.away = 0
	}
	narrow := c.room.most < maxCharged && c.queue.waiting > 0
	if len(ds.all) == 0 || ds.call != nil || now < ds.next || narrow {
		return
	}
	ds.next = now + quota.Instant(callTimeout)
	call := &call{sent: now, items: ds.gatherItems(now, maxCharged)}
	if len(call.items) > 0 {
		ds.call = call
		c.sendCall(call)
	}
}

// takeInCharge reads the answer about a debt.
func (c *Client) takeInCharge(call *call, it *item, a *wire.LeaseAnswer, now quota.Instant) {
	d := it.debt
	d.asked, it.kind = 0, done // Another call may carry the debt before this call is over.
	switch {
	case a.State == wire.ItemUnavailable, a.Waiting > it.waiting:
		c.chargeOwed(d, it, 0, now)
		d.at = now + quota.Instant(callTimeout)
		return
	case a.State == wire.ItemUnknown:
		// Another policy set is in force, and may have other buckets. The debt is forgiven, except
		// the part that a late call may have charged.
		c.Stats.ItemsUnknown++
		c.chargeOwed(d, it, 0, now)
		d.tokens = d.held
		return
	}
	d.at = now + quota.Instant(a.NotBefore)
	left := c.debts.payDebt(it.need.Bucket, a.Waiting*it.need.Cost+it.used)
	c.chargeOwed(d, it, a.Waiting, now)
	if it.need.Optimistic {
		return
	}
	if it.need.isLeaky() || it.need.Reserves {
		left = 0
	}
	// Whatever the answer charged beyond the debt is in hand now.
	l := &learn{
		need: &it.need, now: now, sent: call.sent, jitter: c.random.Jitter(), unused: left, late: call.late,
		ask:   lease.Ask{Params: it.need.Params, Version: it.need.Version, Waiting: a.Waiting, Cost: it.need.Cost},
		grant: lease.Grant{Waiting: a.Waiting, Level: a.Level, FullAfter: a.FullAfter, Term: a.Term},
	}
	if err := c.store.Update(bucketstore.Leased, it.need.Bucket, now, l); err == nil {
		c.Stats.Lapsed += uint64(c.debts.payDebt(it.need.Bucket, l.lapsed))
		c.watchTokens(now, &it.need, l.again)
	}
}

// chargeOwed notes that a call has charged the first n reservations of its item, and settles those
// reservations whose cost is known.
func (c *Client) chargeOwed(d *debt, it *item, n int64, now quota.Instant) {
	for _, r := range d.takeNames(it, n) {
		c.Settle(now, r, r.actual)
	}
}

// endCall ends a call for good: no answer can come any more, so its unanswered items are sent
// again. If some of its answers are held, the call ends with the last of them.
func (c *Client) endCall(call *call, now quota.Instant) {
	if call.over || call.waits > 0 {
		return
	}
	call.over = true
	if c.debts.call == call {
		c.debts.call = nil
		c.chargeSoon()
	}
	for _, h := range call.held {
		h.debt.held -= h.tokens
		c.chargeSoon()
	}
	call.held = nil
	for i := range call.items {
		it := &call.items[i]
		switch it.kind {
		case charges:
			d := it.debt
			d.asked, d.at = 0, now
			for i := range it.owed { // It may be charged although no answer came.
				lost := &Reservation{Need: it.need, Name: it.name + uint64(i) + 1, sent: true}
				c.Settle(now, lost, 0)
			}
			c.chargeOwed(d, it, 0, now)
		case reportsUse:
			c.reports.retryReport(it, now, c.store)
		}
	}
}
