package leasing

import (
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxSettling bounds the settlements that wait. A settlement beyond it is lost: its reservation
	// stays charged.
	maxSettling = 4096
	// settlingItems bounds the settlements in a call.
	settlingItems = 32
	// settledWithin is the time for which a settlement is retried. A settlement that arrives twice
	// changes the bucket once.
	settledWithin = quota.Instant(10 * quota.Second)
)

// Settle sets the cost of a reservation to the actual cost of its request. It keeps r. The
// settlement leaves at once, or with the next call if a call with waiting requests is under way.
func (c *Client) Settle(now quota.Instant, r *Reservation, actual int64) {
	if c.debts.settleUncharged(r, actual) {
		c.chargeSoon()
		return
	}
	r.actual, r.since = actual, now
	s := &c.settlements
	if len(s.waiting) >= maxSettling {
		c.Stats.SettlementsLost++
		return
	}
	s.waiting = append(s.waiting, r)
	if c.room.calls == 0 {
		c.sendSettlements(now)
	}
}

// settleUnused settles reservations that no request uses, at a cost of 0: the requests nth to last
// of a name.
func (c *Client) settleUnused(now quota.Instant, need *Need, name uint64, nth, last int64) {
	for ; nth <= last; nth++ {
		c.Settle(now, &Reservation{Need: *need, Name: name + uint64(nth)}, 0)
	}
}

// sendSettlements sends the first waiting settlements of one policy set, unless a call of
// settlements alone is under way.
func (c *Client) sendSettlements(now quota.Instant) {
	s := &c.settlements
	if len(s.waiting) == 0 || s.alone || now < s.next {
		return
	}
	if _, away := c.Health.Away(); away {
		s.forgetOld(now, &c.Stats)
		return
	}
	s.alone = true
	c.sendCall(&call{sent: now, items: s.takeItems(s.waiting[0].Need.Version, settlingItems), purpose: forSettlements})
}

// settleFirst puts settlements at the front of the call, so refunded tokens can serve the requests
// in the same call.
func (c *Client) settleFirst(call *call) {
	s := &c.settlements
	most := min(settlingItems, wire.MaxItems-len(call.items))
	if len(s.waiting) > 0 && most > 0 && call.sent >= s.next {
		call.items = append(s.takeItems(call.items[0].need.Version, most), call.items...)
	}
}

// takeInSettlement reads the answer to a settlement. If the reservation is not known, and a call
// without an answer has carried the settlement before, the settlement counts without tokens.
// Without such a call it is lost.
func (c *Client) takeInSettlement(it *item, a *wire.LeaseAnswer, now quota.Instant) {
	r := it.settled
	switch {
	case a.State == wire.ItemUnavailable:
		c.requeueSettlement(r, now)
	case a.State == wire.ItemUnknown, a.Waiting == 0 && !r.sent:
		c.Stats.SettlementsLost++
	case r.Tally != nil:
		r.Tally.CountSettled(a.Level - a.Keep)
	}
}

// requeueSettlements queues the settlements of an unanswered call again.
func (c *Client) requeueSettlements(call *call, now quota.Instant) {
	for i := range call.items {
		if it := &call.items[i]; it.kind == settles {
			c.requeueSettlement(it.settled, now)
		}
	}
}

// requeueSettlement queues a settlement for another call, unless it was retried for settledWithin.
func (c *Client) requeueSettlement(r *Reservation, now quota.Instant) {
	s := &c.settlements
	if now-r.since > settledWithin || len(s.waiting) >= maxSettling {
		c.Stats.SettlementsLost++
		return
	}
	s.next = now + quota.Instant(callTimeout)
	r.sent = true
	s.waiting = append(s.waiting, r)
}

// forgetOld gives up settlements that have waited for more than settledWithin while the control
// plane is away.
func (s *settlements) forgetOld(now quota.Instant, stats *Stats) {
	kept := s.waiting[:0]
	for _, r := range s.waiting {
		if now-r.since <= settledWithin {
			kept = append(kept, r)
		}
	}
	stats.SettlementsLost += uint64(len(s.waiting) - len(kept))
	s.waiting = kept
	s.next = now + quota.Instant(callTimeout)
}
