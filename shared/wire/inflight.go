package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// putInFlight writes the longest time that a request counts as in flight, the number of a policy's
// limits of requests in flight, and the index of each among all limits.
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

// readInFlight reads the result of putInFlight.
func (r *SetReader) readInFlight(each func(place int, hold quota.Span)) {
	c, before := &r.c, int64(-1)
	hold := quota.Span(c.readWithin(0, int64(quota.MaxWindow)))
	for n := c.readWithin(1, r.policyLimits); n > 0 && c.err == nil; n-- {
		place := c.readWithin(before+1, r.policyLimits-1)
		before = place
		if c.err == nil {
			each(int(place), hold)
		}
	}
}
