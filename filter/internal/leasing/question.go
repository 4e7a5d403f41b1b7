package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// decided is the change that takes in the control plane's answer to a question about an optimistic
// bucket.
type decided struct {
	need Need
	now  quota.Instant
	debt int64
	// granted are the requests that the control plane had tokens for, wanted those of them that
	// still wait.
	granted, wanted int64

	// used are the requests that may pass.
	used  int64
	level int64
	// wait is how long a request that may not pass is to wait, as far as the node knows.
	wait   quota.Span
	fullAt quota.Instant
}

// Apply implements bucketstore.Change.
func (c *decided) Apply(e *bucketstore.Entry) bool {
	p, cost := c.need.Params, c.need.Cost
	fitTab(e, p, c.now)
	var tokens int64
	e.Tab, tokens = e.Tab.Decided(c.now, p, c.debt, c.granted*cost, c.wanted*cost)
	c.used = tokens / cost
	c.level, c.wait = e.Tab.Remaining(c.now, p), e.Tab.Wait(c.now, p, cost)
	c.fullAt = c.now + quota.Instant(e.Tab.FullAfter(c.now, p))
	return true
}

// settleQuestion shares out the answer to the first requests that wait for an optimistic bucket.
func (d *Desk) settleQuestion(
	b *bucket, it item, asked int, a wire.LeaseAnswer, now, expiry quota.Instant,
) {
	d.deciding = decided{
		need: it.need, now: now, debt: a.Debt,
		granted: a.Waiting, wanted: min(a.Waiting, int64(asked)),
	}
	if err := d.store.Update(bucketstore.Optimistic, it.need.Bucket, now, &d.deciding); err != nil {
		d.failFirst(b, asked, now) // What cannot be noted must not be used.
		return
	}
	for i := range asked {
		t := b.queue[0]
		t.Level, t.FullAt = d.deciding.level, d.deciding.fullAt
		if int64(i) < d.deciding.used {
			d.resolve(b, 0, Granted, expiry)
		} else {
			d.resolve(b, 0, Refused, now+quota.Instant(max(a.NotBefore, d.deciding.wait)))
		}
	}
	if len(b.queue) > 0 {
		d.list(b)
	}
	d.forget(b)
}

// giveBackTab is the change that takes granted tokens for others that the node would report.
type giveBackTab struct {
	need Need
	now  quota.Instant
}

// Apply implements bucketstore.Change.
func (g *giveBackTab) Apply(e *bucketstore.Entry) bool {
	fitTab(e, g.need.Params, g.now)
	e.Tab = e.Tab.GiveBack(g.need.Cost)
	return true
}

// giveBackQuestion gives back what the control plane has granted of an optimistic bucket to a
// request that another policy refuses. What cannot be noted, or comes too late, counts as used.
func (d *Desk) giveBackQuestion(now quota.Instant, t *Ticket) {
	if now < t.Until {
		back := giveBackTab{need: t.Need, now: now}
		_ = d.store.Update(bucketstore.Optimistic, t.Need.Bucket, now, &back)
	}
}
