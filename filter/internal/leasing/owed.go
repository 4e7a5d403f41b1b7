package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// maxOwed bounds the reservations that a VM remembers of what shares have let through, and
	// maxOwedOf those of a bucket. One more costs what it has reserved.
	maxOwed   = 4096
	maxOwedOf = 1024
	// maxOwedAsked bounds those of an item: if its call has no answer, each is settled alone.
	maxOwedAsked = 128
)

// What a share has let through before its cost was known is charged as a reservation of its own, so
// that it can be settled. What is settled before it is charged is charged as it has cost.

// owe notes that a request whose cost is known later has taken its tokens from the share. It
// returns nil if there is no room for another reservation.
func (d *debt) owe(need Need) *Reservation {
	if d.in.owed == maxOwed || len(d.reserved) == maxOwedOf {
		return nil
	}
	r := &Reservation{Need: need, owes: d}
	d.reserved = append(d.reserved, r)
	d.in.owed++
	return r
}

// forget takes the i-th reservation off the debt.
func (d *debt) forget(i int) {
	d.reserved[i].owes = nil
	d.reserved = slices.Delete(d.reserved, i, i+1)
	d.in.owed--
}

// plain is how many tokens of the debt are of no reservation. Reservations that have faded, the
// first ones, cost nothing more: the bucket has earned them.
func (d *debt) plain() int64 {
	plain := d.tokens
	for _, r := range d.reserved {
		plain -= r.Need.Cost
	}
	for plain < 0 && len(d.reserved) > 0 {
		plain += d.reserved[0].Need.Cost
		d.forget(0)
	}
	return plain
}

// alike is how many of the first reservations cost the same and fit into so many tokens.
func (d *debt) alike(tokens int64) (n int) {
	cost := d.reserved[0].Need.Cost
	for n < len(d.reserved) && d.reserved[n].Need.Cost == cost && tokens >= cost && n < maxOwedAsked {
		tokens -= cost
		n++
	}
	return n
}

// charged gives reservations that a call has asked for their names, the first n of them. The others
// wait for another call. What has been settled meanwhile is settled now.
func (d *debt) charged(c *Client, it *item, n int64, now quota.Instant) {
	for i, r := range it.owed {
		r.asked = false
		if int64(i) < n {
			r.Name = it.name + uint64(i) + 1
			if r.owes != nil { // It may have faded meanwhile.
				d.forget(slices.Index(d.reserved, r))
			}
		}
		if r.known {
			c.Settle(now, r, r.actual)
		}
	}
	it.owed = nil
}

// settleOwed settles a reservation that the control plane has not charged. It reports false if it
// has.
func (c *Client) settleOwed(r *Reservation, actual int64) bool {
	d := r.owes
	switch {
	case r.asked: // The answer says how.
		r.actual, r.known = actual, true
		return true
	case d == nil:
		return r.Name == 0
	}
	d.forget(slices.Index(d.reserved, r))
	d.tokens = max(d.tokens+actual-r.Need.Cost, 0)
	c.chargeSoon()
	if r.Tally != nil {
		r.Tally.CountSettled((r.Need.Cost - actual) * quota.Parts)
	}
	return true
}
