package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// maxGroupCalls bounds the calls under way for requests that need several buckets; further ones go along in the next.
const maxGroupCalls = 4

// group is one request's tickets for several buckets: the centre grants all of them or none.
type group struct {
	stream   uint32
	deadline quota.Instant
	tickets  []*Ticket
	// asked: a call carries it. gone: its request does not wait any more, so its tickets must not be touched.
	asked, gone bool
}

// JoinAll queues the tickets of one request for several buckets, which are granted together or not at all. They have one Stream
// and one Deadline; those of the first count. It reports false, and queues nothing, if as many requests wait as may, or if no
// call can carry so many buckets. Flush sends.
func (d *Desk) JoinAll(now quota.Instant, tickets []*Ticket) bool {
	if d.waiting >= d.room.waiters(now) || len(tickets) > wire.MaxItems {
		return false
	}
	d.waiting++
	g := &group{stream: tickets[0].Stream, deadline: tickets[0].Deadline, tickets: append([]*Ticket(nil), tickets...)}
	if g.deadline == 0 {
		g.deadline = now + quota.Instant(lease.Deadline)
	}
	for _, t := range tickets {
		t.Outcome, t.Deadline = Waiting, g.deadline
	}
	d.groups = append(d.groups, g)
	d.queued++
	return true
}

// flushGroups sends what is queued, as far as calls may be under way.
func (d *Desk) flushGroups(now quota.Instant) {
	for d.queued > 0 && now >= d.room.rest && d.groupCalls < min(maxGroupCalls, max(d.room.most/roomPerCall, 1)) {
		d.groupCalls++
		d.send(d.gatherGroups(now))
	}
}

// gatherGroups takes the first groups into a call: whole ones, of one version.
func (d *Desk) gatherGroups(now quota.Instant) *call {
	c := &call{sent: now}
	for _, g := range d.groups {
		if g.asked {
			continue
		}
		if len(c.items)+len(g.tickets) > wire.MaxItems || len(c.items) > 0 && c.items[0].ask.Version != g.tickets[0].Need.Version {
			break
		}
		g.asked = true
		d.queued--
		c.groups = append(c.groups, g)
		c.asks++
		for i, t := range g.tickets {
			need := t.Need
			c.items = append(c.items, item{
				need: need, joined: i < len(g.tickets)-1,
				ask: lease.Ask{Params: need.Params, Version: need.Version, Waiting: min(need.Cost, 1), Cost: max(need.Cost, 1)},
			})
		}
	}
	return c
}

// settleGroups shares out the answers to a call for groups.
func (d *Desk) settleGroups(c *call, now quota.Instant) {
	d.groupCalls--
	from := 0
	for _, g := range c.groups {
		to := from + len(g.tickets)
		d.settleGroup(c, g, c.items[from:to], d.reply.Items[from:to], now)
		from = to
	}
}

// settleGroup shares out the answers for one request. Tokens that it cannot use any more serve the next one.
func (d *Desk) settleGroup(c *call, g *group, items []item, answers []wire.LeaseAnswer, now quota.Instant) {
	expiry := lease.Expiry(c.sent, lease.Deadline)
	granted, fault, unknown := true, false, false
	for i, a := range answers {
		if a.State == wire.ItemUnavailable {
			continue // The others are granted all or none without it.
		}
		unknown = unknown || a.State == wire.ItemUnknown || a.Waiting > 1 || a.Keep > 0
		granted = granted && a.Waiting == items[i].ask.Waiting
		fault = fault || a.Waiting == 0 && a.NotBefore > 0
	}
	if unknown {
		d.Stats.ItemsUnknown++
	}
	if unknown || now >= expiry {
		d.endGroup(g, Failed)
		return
	}
	for i, a := range answers {
		if a.State == wire.ItemUnavailable {
			if !g.gone {
				g.tickets[i].Outcome, g.tickets[i].Until = Failed, now-quota.Instant(a.NotBefore)
			}
			continue
		}
		d.learnOfGroup(c, items[i], a, now, !granted || g.gone)
		if g.gone {
			continue
		}
		t := g.tickets[i]
		t.Level, t.FullAt, t.Delay = d.learn.level, d.learn.fullAt, a.Delay
		switch {
		case granted:
			t.Outcome, t.Until = Granted, expiry
		case a.Waiting == 0 && a.NotBefore > 0:
			t.Outcome, t.Until = Refused, now+quota.Instant(a.NotBefore)
		case fault:
			t.Outcome = Spared
		default:
			t.Outcome = Failed
		}
	}
	d.endGroup(g, Waiting)
}

// learnOfGroup takes in the answer for one bucket of a group. One that had the tokens was not short of them.
func (d *Desk) learnOfGroup(c *call, it item, a wire.LeaseAnswer, now quota.Instant, unused bool) {
	if a.Waiting == 0 && a.NotBefore == 0 {
		it.ask.Waiting = 0
	}
	d.learn = learn{
		now: now, sent: c.sent, ask: it.ask, algorithm: it.need.Algorithm, strict: it.need.Strict, jitter: d.random.Jitter(),
		grant: lease.Grant{Waiting: a.Waiting, NotBefore: a.NotBefore, Level: a.Level, FullAfter: a.FullAfter},
	}
	if unused && !it.need.queue() {
		d.learn.unused = a.Waiting * it.ask.Cost
	}
	_ = d.store.Update(bucketstore.Leased, it.need.Bucket, now, &d.learn)
}

// endGroup ends a group's tickets: all by the outcome, or each by its own if that is Waiting.
func (d *Desk) endGroup(g *group, outcome Outcome) {
	if g.gone {
		return
	}
	if outcome != Waiting {
		for _, t := range g.tickets {
			t.Outcome, t.Until = outcome, 0
		}
	}
	d.dropGroup(g)
	d.resolved = append(d.resolved, g.stream)
}

// dropGroup forgets a group whose request does not wait any more.
func (d *Desk) dropGroup(g *group) {
	for i := range d.groups {
		if d.groups[i] == g {
			d.groups = append(d.groups[:i], d.groups[i+1:]...)
			break
		}
	}
	if !g.asked {
		d.queued--
	}
	g.gone = true
	d.waiting--
}

// failGroups ends all groups of a call, and with all also those that no call carries.
func (d *Desk) failGroups(c *call, all bool) {
	if len(c.groups) > 0 {
		d.groupCalls--
	}
	for _, g := range c.groups {
		d.endGroup(g, Failed)
	}
	for i := len(d.groups) - 1; i >= 0 && all; i-- {
		if g := d.groups[i]; !g.asked {
			d.endGroup(g, Failed)
		}
	}
}

// tickGroups ends groups whose deadline has passed.
func (d *Desk) tickGroups(now quota.Instant) {
	for i := len(d.groups) - 1; i >= 0; i-- {
		g := d.groups[i]
		if now >= g.deadline || !g.asked && now >= g.deadline-quota.Instant(lease.Deadline-d.unsentFor()) {
			d.endGroup(g, Failed)
		}
	}
}

// cancelGroup withdraws a stream's group.
func (d *Desk) cancelGroup(stream uint32) {
	for _, g := range d.groups {
		if g.stream == stream {
			d.dropGroup(g)
			return
		}
	}
}
