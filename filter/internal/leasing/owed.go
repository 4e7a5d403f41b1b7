package leasing

import "github.com/weir-proxy/weir/shared/quota"

// What a share has let through before its cost was known is charged as a reservation of its own, so
// that it can be settled. What is settled before it is charged is charged as it has cost.

// owe notes that a request whose cost is known later has taken its tokens from the share.
func (d *debt) owe(need Need) *Reservation {
	r := &Reservation{Need: need, owes: d}
	d.reserved = append(d.reserved, r)
	return r
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
		d.reserved[0].owes = nil
		d.reserved = d.reserved[1:]
	}
	return plain
}

// alike is how many of the first reservations cost the same and fit into so many tokens.
func (d *debt) alike(tokens int64) (n int) {
	cost := d.reserved[0].Need.Cost
	for n < len(d.reserved) && d.reserved[n].Need.Cost == cost && tokens >= cost && n < maxDue-1 {
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
			r.Name, r.owes = it.name+uint64(i)+1, nil
			d.reserved = d.reserved[1:]
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
	case d == nil:
		return r.Name == 0
	case r.asked: // The answer says how.
		r.actual, r.known = actual, true
		return true
	}
	for i := range d.reserved {
		if d.reserved[i] == r {
			d.reserved = append(d.reserved[:i], d.reserved[i+1:]...)
			break
		}
	}
	d.tokens, r.owes = max(d.tokens+actual-r.Need.Cost, 0), nil
	c.chargeSoon()
	if r.Tally != nil {
		r.Tally.CountSettled((r.Need.Cost - actual) * quota.Parts)
	}
	return true
}
