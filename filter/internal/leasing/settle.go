package leasing

import (
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxSettling bounds the settlements that wait. One more is lost: what was reserved stays
	// charged.
	maxSettling = 4096
	// settlingItems bounds those of a call.
	settlingItems = 32
	// settledWithin is how long a settlement is tried. Sent again it changes nothing that it has
	// changed.
	settledWithin = quota.Instant(10 * quota.Second)
)

// Settle has the control plane make a reservation cost what its request has cost. It keeps r. The
// settlement leaves at once, or with the next call if one is under way that requests wait for.
func (c *Client) Settle(now quota.Instant, r *Reservation, actual int64) {
	if c.debts.settle(r, actual) {
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
		c.sendSettled(now)
	}
}

// unused settles reservations of a need that no request uses: the nth to the last of a name.
func (c *Client) unused(now quota.Instant, need *Need, name uint64, nth, last int64) {
	for ; nth <= last; nth++ {
		c.Settle(now, &Reservation{Need: *need, Name: name + uint64(nth)}, 0)
	}
}

// sendSettled sends the settlements that wait, the first ones of one policy set, unless a call with
// nothing else is under way.
func (c *Client) sendSettled(now quota.Instant) {
	s := &c.settlements
	if len(s.waiting) == 0 || s.alone || now < s.next {
		return
	}
	if _, away := c.Health.Away(); away {
		s.forgetOld(now, &c.Stats)
		return
	}
	s.alone = true
	c.send(&call{sent: now, items: s.take(s.waiting[0].Need.Version, settlingItems), purpose: forSettlements})
}

// settleFirst has a call settle before anything else, so that what comes back is there for the
// requests that wait in it.
func (c *Client) settleFirst(call *call) {
	s := &c.settlements
	most := min(settlingItems, wire.MaxItems-len(call.items))
	if len(s.waiting) > 0 && most > 0 && call.sent >= s.next {
		call.items = append(s.take(call.items[0].need.Version, most), call.items...)
	}
}

// settled takes in the answer to a settlement. A reservation that is not known was settled by a
// call whose answer was lost, and counts as settled without tokens. If there was none, it is lost.
func (c *Client) settled(it *item, a *wire.LeaseAnswer, now quota.Instant) {
	r := it.settled
	switch {
	case a.State == wire.ItemUnavailable:
		c.waitAgain(r, now)
	case a.State == wire.ItemUnknown, a.Waiting == 0 && !r.sent:
		c.Stats.SettlementsLost++
	case r.Tally != nil:
		r.Tally.CountSettled(a.Level - a.Keep)
	}
}

// settleAgain has the settlements of a call without an answer wait for another.
func (c *Client) settleAgain(call *call, now quota.Instant) {
	for i := range call.items {
		if it := &call.items[i]; it.kind == settles {
			c.waitAgain(it.settled, now)
		}
	}
}

func (c *Client) waitAgain(r *Reservation, now quota.Instant) {
	s := &c.settlements
	if now-r.since > settledWithin || len(s.waiting) >= maxSettling {
		c.Stats.SettlementsLost++
		return
	}
	s.next = now + quota.Instant(callTimeout)
	r.sent = true
	s.waiting = append(s.waiting, r)
}

// forgetOld gives up what has waited for too long while the control plane is away.
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
