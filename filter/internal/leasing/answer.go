package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// answer handles the end of a call.
func (d *Desk) answer(c *call, status int, body []byte) {
	now := d.clock.Now()
	how := rpc.Of(status)
	if how == rpc.Answered {
		err := wire.DecodeLeaseReply(body, &d.reply)
		if err != nil || d.reply.Seq != c.seq || len(d.reply.Items) != len(c.items) {
			how = rpc.Unreadable
		}
	}
	if how != rpc.Answered {
		d.fail(c, now, how)
		return
	}
	open := d.breaker.IsOpen()
	d.breaker.Answered(now, c.probe, d.random.Jitter())
	if c.asks > 0 {
		d.room.ended(c.sent, now, c.asks, true)
	}
	if open && !d.breaker.IsOpen() {
		d.room.restart()
	}
	d.answered = now
	d.Stats.Calls[rpc.Answered]++
	if d.reply.Nodes != d.sharedNodes.Load() {
		d.sharedNodes.Store(d.reply.Nodes)
	}
	d.nodes = d.reply.Nodes
	if len(c.groups) > 0 {
		d.settleGroups(c, now)
	}
	for i, it := range c.items {
		if it.bucket != nil {
			d.settle(c, it, d.reply.Items[i], now)
		} else if it.sent != 0 {
			d.settleReport(it, d.reply.Items[i], now)
		}
	}
	d.Flush(now) // Who queued behind this call would wait for the next tick otherwise.
}

// fail ends a call without an answer: who was asked for, and who queued behind, falls back to the failure ladder.
func (d *Desk) fail(c *call, now quota.Instant, how rpc.Outcome) {
	d.Stats.Calls[how]++
	d.reason = how
	if how == rpc.Overloaded && !c.probe {
		d.breaker.Overloaded(now)
	} else {
		d.breaker.Failed(now, c.probe, how == rpc.Unsent, d.random.Jitter())
	}
	if c.asks > 0 {
		d.room.ended(c.sent, now, c.asks, false)
	}
	if how == rpc.Overloaded && d.room.most == 1 {
		d.room.rest = now + rpc.Spread(longestRest, d.random.Jitter())
	}
	d.failGroups(c, d.breaker.IsOpen())
	for _, it := range c.items {
		if b := it.bucket; b != nil && b.call == c {
			b.call, b.asked = nil, 0
			for len(b.queue) > 0 {
				d.resolve(b, 0, Failed, now)
			}
			d.forget(b)
		}
	}
}

// settle shares out the answer for one bucket.
func (d *Desk) settle(c *call, it item, a wire.LeaseAnswer, now quota.Instant) {
	b := it.bucket
	asked := 0
	if b.call == c {
		asked = b.asked
		b.call, b.asked = nil, 0
	}
	expiry := lease.Expiry(c.sent, lease.Deadline)
	if a.State == wire.ItemUnavailable {
		d.failFirst(b, asked, now-quota.Instant(a.NotBefore))
		return
	}
	unknown := a.State == wire.ItemUnknown || a.Waiting > it.ask.Waiting || a.Keep > it.ask.Keep
	if unknown {
		d.Stats.ItemsUnknown++
	}
	if unknown || now >= expiry && (asked > 0 || it.need.Optimistic) {
		d.failFirst(b, asked, now)
		return
	}
	if it.need.Optimistic {
		d.settleQuestion(b, it, asked, a, now, expiry)
		return
	}
	granted := int(a.Waiting)
	used := min(granted, asked)
	if it.ask.Waiting == 0 { // All who wait just look.
		used = asked
	}
	grant := lease.Grant{Waiting: a.Waiting, Keep: a.Keep, NotBefore: a.NotBefore, Level: a.Level, FullAfter: a.FullAfter}
	d.learn = learn{
		now: now, sent: c.sent, ask: it.ask, grant: grant, algorithm: b.need.Algorithm, strict: b.need.Strict, jitter: d.random.Jitter(),
	}
	if !b.need.queue() {
		d.learn.unused = max(int64(granted-used), 0) * it.ask.Cost
	}
	// A contended credit loses what it would have learnt: tokens to keep expire unused at the centre.
	if err := d.store.Update(bucketstore.Leased, b.need.Bucket, now, &d.learn); err == nil {
		d.Stats.Lapsed += uint64(d.learn.lapsed)
	}
	for i := range used {
		t := b.queue[0]
		later := int64(used-1-i) * t.Need.Cost // What those take that waited behind it.
		t.Level, t.FullAt = d.learn.level+later, d.learn.fullBefore(later)
		t.Delay = a.Delay + it.ask.Params.ResetAfter(quota.State{Debt: it.ask.Params.UnitsFor(int64(i) * it.ask.Cost)}, 0)
		d.resolve(b, 0, Granted, expiry)
	}
	if kept := d.settleShort(b, asked-used, now, a); len(b.queue) > kept {
		d.list(b)
	}
	d.forget(b)
}

// failFirst ends the first tickets of a bucket without an answer, and has the rest asked again.
func (d *Desk) failFirst(b *bucket, n int, since quota.Instant) {
	for range n {
		d.resolve(b, 0, Failed, since)
	}
	if len(b.queue) > 0 {
		d.list(b)
	}
	d.forget(b)
}

// settleShort ends the tickets that the centre had nothing for, unless the node has tokens by now or is about to have some:
// those stay at the head of the queue, and their number is returned.
func (d *Desk) settleShort(b *bucket, short int, now quota.Instant, a wire.LeaseAnswer) int {
	at := 0
	for range short {
		t := b.queue[at]
		d.spend = Spend{Need: t.Need, Now: now, Commit: true}
		err := d.store.Update(bucketstore.Leased, t.Need.Bucket, now, &d.spend)
		switch {
		case err == nil && d.spend.State == Ready:
			t.Level, t.FullAt = d.spend.Level, d.spend.FullAt
			d.resolve(b, at, Granted, d.spend.Until)
		case err == nil && d.spend.KeepCall && now < t.Deadline:
			at++ // The tick looks again.
		default:
			t.FullAt = d.spend.FullAt
			d.resolve(b, at, Refused, now+quota.Instant(a.NotBefore))
		}
	}
	return at
}
