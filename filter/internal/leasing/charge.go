package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Owe notes that a request took its tokens from the node's share. The whole bucket held so many
// tokens at most. Ticket is what the request waited with before, if it did. If its answer came
// late, the tokens are charged already. If no answer has come yet, they may be. It returns what is
// to be settled if the need Reserves and the tokens are not charged already; else nil.
func (c *Client) Owe(now quota.Instant, need Need, t *Ticket, holds int64) (r *Reservation) {
	if t.Charged || t.lateCall.takePrepaid(&need) {
		return nil
	}
	d := c.debts.of(need)
	if d == nil {
		return nil
	}
	c.fade(d, now)
	if d.tokens == 0 {
		d.fadesFrom = now
	}
	p := need.Params
	if missing := p.Burst - holds; missing > 0 {
		d.fadesFrom = max(d.fadesFrom, now+quota.Instant(need.earning(missing)))
	}
	if d.tokens += need.Cost; need.Reserves {
		r = d.owe(need)
	}
	c.debts.rise(d)
	if call := t.lateCall; call != nil && !call.over {
		d.held += need.Cost
		call.held = append(call.held, heldDebt{d, need.Cost})
	}
	c.chargeSoon()
	return r
}

// takePrepaid reports whether a call's late answer has charged what a request of it takes. It takes
// none of a nil call.
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

// Owed is how many tokens of a bucket this VM knows to be uncharged.
func (c *Client) Owed(now quota.Instant, bucket keyhash.Key) int64 {
	d := c.debts.byBucket[bucket]
	if d == nil {
		return 0
	}
	c.fade(d, now)
	return d.tokens
}

// chargeSoon has the next tick look for debts to charge. While calls are late it looks seldom.
func (c *Client) chargeSoon() {
	if !c.room.pressed() {
		c.debts.next = 0
	}
}

// fade forgets the tokens that the bucket has earned in an outage since it was full, which would
// have paid for them. It earns for all nodes: each forgets its share. While the control plane
// answers nothing fades, because the debt is charged, and other nodes may use the bucket.
func (c *Client) fade(d *debt, now quota.Instant) {
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

// askFirst adds items that ask for the debts of a call's buckets to those that go first in it. What
// gives tokens back is one of them already, since it has paid some of the debts.
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
		if tokens := d.due(call.sent); tokens > 0 {
			need.adopt(&d.need)
			first = append(first, d.ask(need, tokens))
		}
	}
	return first
}

// charge asks for debts that no request's call has taken along, in one call at a time. While calls
// are late it asks seldom, and not at all where even the requests that wait have hardly room.
func (c *Client) charge(now quota.Instant) {
	ds := &c.debts
	if since, away := c.Health.Away(); away {
		ds.away = since
		return
	}
	if ds.away != 0 {
		for _, d := range ds.all {
			c.fade(d, now)
		}
		ds.away = 0
	}
	narrow := c.room.most < maxCharged && c.queue.waiting > 0
	if len(ds.all) == 0 || ds.call != nil || now < ds.next || narrow {
		return
	}
	ds.next = now + quota.Instant(callTimeout)
	call := &call{sent: now, items: ds.gather(now, maxCharged)}
	if len(call.items) > 0 {
		ds.call = call
		c.send(call)
	}
}

// charged takes in the answer about a debt.
func (c *Client) charged(call *call, it *item, a *wire.LeaseAnswer, now quota.Instant) {
	d := it.debt
	d.asked, it.kind = 0, done // Another call may carry the debt before this one is over.
	switch {
	case a.State == wire.ItemUnavailable, a.Waiting > it.waiting:
		c.chargeOwed(d, it, 0, now)
		d.at = now + quota.Instant(callTimeout)
		return
	case a.State == wire.ItemUnknown:
		// Another policy set is in force, and may know other buckets: the debt is forgiven, but for
		// what a late call may have charged.
		c.Stats.ItemsUnknown++
		c.chargeOwed(d, it, 0, now)
		d.tokens = d.held
		return
	}
	d.at = now + quota.Instant(a.NotBefore)
	left := c.debts.pay(it.need.Bucket, a.Waiting*it.need.Cost+it.used)
	c.chargeOwed(d, it, a.Waiting, now)
	if it.need.Optimistic {
		return
	}
	if it.need.leaky() || it.need.Reserves {
		left = 0
	}
	l := &learn{
		need: &it.need, now: now, sent: call.sent, jitter: c.random.Jitter(), unused: left, late: call.late,
		ask:   lease.Ask{Params: it.need.Params, Version: it.need.Version, Waiting: a.Waiting, Cost: it.need.Cost},
		grant: lease.Grant{Waiting: a.Waiting, Level: a.Level, FullAfter: a.FullAfter, Term: a.Term},
	}
	if err := c.store.Update(bucketstore.Leased, it.need.Bucket, now, l); err == nil {
		c.Stats.Lapsed += uint64(c.debts.pay(it.need.Bucket, l.lapsed))
		c.watch(now, &it.need, l.again)
	}
}

// chargeOwed notes which reservations of a debt a call has charged, the first n that it asked for.
func (c *Client) chargeOwed(d *debt, it *item, n int64, now quota.Instant) {
	for _, r := range d.named(it, n) {
		c.Settle(now, r, r.actual)
	}
}

// over ends a call for good: nothing more is heard of what it has charged, so what has no answer is
// sent again. A call of which answers are held ends with the last of them.
func (c *Client) over(call *call, now quota.Instant) {
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
			for i := range it.owed { // It may be charged all the same.
				lost := &Reservation{Need: it.need, Name: it.name + uint64(i) + 1, sent: true}
				c.Settle(now, lost, 0)
			}
			c.chargeOwed(d, it, 0, now)
		case reportsUse:
			c.reports.again(it, now, c.store)
		}
	}
}
