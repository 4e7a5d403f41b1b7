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

// nameBits are those of a name that number the requests of one item, from 1. The others name the
// item's reservations together.
const nameBits = 16

// Reservation is what the control plane has granted a request before its cost was known, by its
// Name.
type Reservation struct {
	Need Need
	Name uint64

	// actual is what it has cost, which became known at since.
	actual int64
	since  quota.Instant
}

// corrections are the reservations whose requests have cost something else, and which the control
// plane does not know of. One call at a time carries some.
type corrections struct {
	// names is the last name that this VM has given to an item. It begins at random.
	names    uint64
	waiting  []*Reservation
	underWay bool
	// next is when the tick tries again.
	next quota.Instant
}

// Settle has the control plane make a reservation cost what its request has cost. It keeps r.
func (c *Client) Settle(now quota.Instant, r *Reservation, actual int64) {
	r.actual, r.since = actual, now
	s := &c.corrections
	if len(s.waiting) >= maxSettling {
		c.Stats.SettlementsLost++
		return
	}
	s.waiting = append(s.waiting, r)
	c.sendSettled(now)
}

// unused settles reservations of a need that no request uses: the nth to the last of a name.
func (c *Client) unused(now quota.Instant, need *Need, name uint64, nth, last int64) {
	for ; nth <= last; nth++ {
		c.Settle(now, &Reservation{Need: *need, Name: name + uint64(nth)}, 0)
	}
}

// sendSettled sends the settlements that wait, the first ones of one policy set, unless a call with
// some is under way.
func (c *Client) sendSettled(now quota.Instant) {
	s := &c.corrections
	if len(s.waiting) == 0 || s.underWay || now < s.next {
		return
	}
	if _, away := c.Health.Away(); away {
		s.forgetOld(now, &c.Stats)
		return
	}
	call := &call{sent: now, settles: true}
	for _, r := range s.waiting {
		if len(call.items) == settlingItems || !carries(call.items, r.Need.Version) {
			break
		}
		it := call.carry(&r.Need)
		it.need.Cost, it.settles = 1, r
	}
	s.waiting = append(s.waiting[:0], s.waiting[len(call.items):]...)
	s.underWay = true
	c.send(call)
}

// settled takes in the answer to a settlement.
func (c *Client) settled(it *item, a *wire.LeaseAnswer, now quota.Instant) {
	switch a.State {
	case wire.ItemUnavailable:
		c.waitAgain(it.settles, now)
	case wire.ItemUnknown:
		c.Stats.SettlementsLost++
	}
}

// settleAgain has the settlements of a call without an answer wait for the next.
func (c *Client) settleAgain(call *call, now quota.Instant) {
	c.corrections.underWay = false
	c.corrections.next = now + quota.Instant(keepTimeout)
	for i := range call.items {
		c.waitAgain(call.items[i].settles, now)
	}
}

func (c *Client) waitAgain(r *Reservation, now quota.Instant) {
	s := &c.corrections
	if now-r.since > settledWithin || len(s.waiting) >= maxSettling {
		c.Stats.SettlementsLost++
		return
	}
	s.next = now + quota.Instant(keepTimeout)
	s.waiting = append(s.waiting, r)
}

// forgetOld gives up what has waited for too long while the control plane is away.
func (s *corrections) forgetOld(now quota.Instant, stats *Stats) {
	kept := s.waiting[:0]
	for _, r := range s.waiting {
		if now-r.since <= settledWithin {
			kept = append(kept, r)
		}
	}
	stats.SettlementsLost += uint64(len(s.waiting) - len(kept))
	s.waiting = kept
	s.next = now + quota.Instant(keepTimeout)
}
