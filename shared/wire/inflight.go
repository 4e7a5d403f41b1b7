package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// putInFlight writes how long a request counts as in flight at most, how many limits of a policy
// are of requests in flight, and the place of each among all limits.
func putInFlight(dst []byte, p *policy.Policy) []byte {
	var places []byte
	count, hold := int64(0), quota.Span(0)
	eachLimit(p, func(place int64, l *policy.Limit) {
		if l.InFlight {
			places = putUvarint(places, place)
			hold = l.Window
			count++
		}
	})
	return append(putUvarint(putUvarint(dst, int64(hold)), count), places...)
}

// inFlight reads what putInFlight has written.
func (r *SetReader) inFlight(each func(place int, hold quota.Span)) {
	c, before := &r.c, int64(-1)
	hold := quota.Span(c.within(0, int64(quota.MaxWindow)))
	for n := c.within(1, r.policyLimits); n > 0 && c.err == nil; n-- {
		place := c.within(before+1, r.policyLimits-1)
		before = place
		if c.err == nil {
			each(int(place), hold)
		}
	}
}
