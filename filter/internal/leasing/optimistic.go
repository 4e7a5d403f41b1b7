package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Use is the change that spends tokens of an optimistic bucket, to be reported afterwards. Without Commit it looks.
type Use struct {
	Need
	Now    quota.Instant
	Commit bool
	// Slack is what this node may use before the centre knows.
	Slack int64

	Result quota.Result
	// Asks: in place of this refusal the control plane is to decide.
	Asks bool
	// Heard: the centre has said what the bucket holds.
	Heard     bool
	Remaining int64
	Reset     quota.Span
	// Due is when to report, of tokens that were spent.
	Due quota.Instant
}

// Apply implements bucketstore.Change.
func (u *Use) Apply(e *bucketstore.Entry) bool {
	fitTab(e, u.Params, u.Now)
	var t lease.Tab
	t, u.Result = e.Tab.Use(u.Now, u.Params, u.Slack, u.Cost)
	spent := u.Commit && u.Result.Allowed && u.Cost > 0
	if spent {
		e.Tab = t
		u.Due = t.Due(u.Now, u.Slack)
	}
	u.Heard = e.Tab.Heard != 0
	u.Asks = !u.Result.Allowed && e.Tab.Asks(u.Now, u.Params, u.Slack, u.Cost)
	u.Remaining, u.Reset = e.Tab.Remaining(u.Now, u.Params), e.Tab.FullAfter(u.Now, u.Params)
	return spent
}

// fitTab makes an entry speak of the figures. One that may have been evicted owes what it may have owed.
func fitTab(e *bucketstore.Entry, p quota.Params, now quota.Instant) {
	switch {
	case e.New:
		e.Params = p
		if wait := quota.Span(e.Debtor - now); wait > 0 {
			e.Tab = lease.Tab{Debt: p.UnitsFor(min(p.Earned(wait), p.Burst-1) + 1), Heard: now}
		}
	case e.Params != p:
		e.Tab = e.Tab.Convert(e.Params, p)
		e.Params = p
	}
}

// tell is the change that starts a report if one is due, and heed the one that takes in the answer to it.
type tell struct {
	need  Need
	now   quota.Instant
	slack int64

	due, sent quota.Instant
	used      int64
}

// Apply implements bucketstore.Change.
func (t *tell) Apply(e *bucketstore.Entry) bool {
	t.used = 0
	fitTab(e, t.need.Params, t.now)
	if t.due = e.Tab.Due(t.now, t.slack); t.due > t.now {
		return false
	}
	e.Tab = e.Tab.Report(t.now)
	t.used, t.sent = e.Tab.Reported, e.Tab.Sent
	return true
}

type heed struct {
	need      Need
	now, sent quota.Instant
	slack     int64
	debt      int64

	due quota.Instant
}

// Apply implements bucketstore.Change.
func (h *heed) Apply(e *bucketstore.Entry) bool {
	fitTab(e, h.need.Params, h.now)
	e.Tab = e.Tab.Answered(h.now, h.sent, h.need.Params, h.debt)
	h.due = e.Tab.Due(h.now, h.slack)
	return true
}

// owed is a bucket of which this VM has something to report, at the instant at or later.
type owed struct {
	need Need
	at   quota.Instant
	done bool
}

const (
	// maxOwed bounds what a VM keeps in mind to report. What does not fit is reported when the bucket is used again.
	maxOwed = 4096
	// assumedNodes is how many nodes there may be as long as the centre has not said.
	assumedNodes = 64
)

// Slack is what this node may use of a bucket before the centre knows.
func (d *Desk) Slack(p quota.Params) int64 {
	if d.nodes == 0 {
		return lease.Slack(p, assumedNodes)
	}
	return lease.Slack(p, d.nodes)
}

// Report notes that a bucket has something to report at an instant; what is due already is sent at once.
func (d *Desk) Report(now quota.Instant, need Need, at quota.Instant) {
	if d.owes == nil {
		d.owes = make(map[keyhash.Key]*owed)
	}
	key := keyhash.Key(need.Bucket)
	o := d.owes[key]
	if o == nil {
		if len(d.owes) >= maxOwed {
			return
		}
		o = &owed{at: at}
		d.owes[key] = o
		d.owing = append(d.owing, o)
	}
	if o.done {
		o.done, o.at = false, at
	}
	o.need, o.at = need, min(o.at, at)
	if at <= now {
		d.tell(now)
	}
}

// tell reports what is due.
func (d *Desk) tell(now quota.Instant) {
	if _, away := d.Away(); away || len(d.owing) == 0 {
		return
	}
	c := &call{sent: now}
	rest := d.owing[:0]
	for _, o := range d.owing {
		if o.done {
			delete(d.owes, keyhash.Key(o.need.Bucket))
			continue
		}
		if o.at > now || len(c.items) == wire.MaxItems || len(c.items) > 0 && c.items[0].ask.Version != o.need.Version {
			rest = append(rest, o)
			continue
		}
		d.telling = tell{need: o.need, now: now, slack: d.Slack(o.need.Params)}
		if err := d.store.Update(bucketstore.Optimistic, o.need.Bucket, now, &d.telling); err != nil {
			o.at = now + quota.Instant(quota.Millisecond)
			rest = append(rest, o)
			continue
		}
		switch {
		case d.telling.used > 0:
			c.items = append(c.items, item{need: o.need, sent: d.telling.sent, ask: lease.Ask{
				Params: o.need.Params, Version: o.need.Version, Cost: 1, Used: d.telling.used,
			}})
			o.at = now + quota.Instant(lease.Patience)
			rest = append(rest, o) // Another report if no answer comes.
		case d.telling.due < quota.Instant(quota.Never):
			o.at = d.telling.due
			rest = append(rest, o)
		default: // Another worker has reported it.
			delete(d.owes, keyhash.Key(o.need.Bucket))
		}
	}
	d.owing = rest
	if len(c.items) > 0 {
		d.send(c)
	}
}

// settleReport takes in the answer to a report. Of a bucket that the centre does not know nothing is learnt: the report is made
// again, under the policy set that is in force by then, or not at all if nobody uses the bucket any more.
func (d *Desk) settleReport(it item, a wire.LeaseAnswer, now quota.Instant) {
	if a.State == wire.ItemUnavailable {
		return // It is reported again, as if no answer had come.
	}
	o := d.owes[keyhash.Key(it.need.Bucket)]
	if a.State == wire.ItemUnknown {
		d.Stats.ItemsUnknown++
		if o != nil {
			o.done = true
		}
		return
	}
	d.heeding = heed{need: it.need, now: now, sent: it.sent, slack: d.Slack(it.need.Params), debt: a.Debt}
	if err := d.store.Update(bucketstore.Optimistic, it.need.Bucket, now, &d.heeding); err != nil {
		return // It is reported again, and counted twice: too little is admitted.
	}
	if o != nil {
		o.at, o.done = d.heeding.due, d.heeding.due == quota.Instant(quota.Never)
	}
}
