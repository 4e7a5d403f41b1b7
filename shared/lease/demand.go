package lease

import "github.com/weir-proxy/weir/shared/quota"

// tokensIn returns the demand in span at now, without the tokens that are being spent now.
func (c Credit) tokensIn(now quota.Instant, p quota.Params, span quota.Span) int64 {
	return c.demandAt(now, p) * int64(span/quota.Millisecond) / (demandScale * 1000)
}

// demandAt decays the demand to now. The hyperbola T/(T+dt) has the right fixed point for steady
// traffic and needs no table. A time in which requests were refused here says nothing about the
// demand, so for a scarce bucket up to a back-off of that time does not count. Otherwise a node
// would ask for the tokens that it was granted, and not for the tokens that it could use.
func (c Credit) demandAt(now quota.Instant, p quota.Params) int64 {
	from := c.DemandAt
	if c.Short >= lasting {
		from = max(from, min(c.NotBefore, from+quota.Instant(BackOff(p))))
	}
	if now <= from {
		return c.Demand
	}
	dt := min(int64(now-from), int64(quota.Hour))
	m := int64(memoryOf(p))
	return c.Demand * m / (m + dt)
}

// memoryOf returns the time over which demand is averaged: half a second, or the time that kept
// tokens cover if that is longer. So a node never asks to keep more than it spent in that time.
// With a shorter average, two quick requests to a bucket of 100 an hour would look like a stream
// and tie up eight tokens.
func memoryOf(p quota.Params) quota.Span { return max(minMemory, BackOff(p)) }

// Observe adds n tokens to the demand at now, whether they were granted or not.
func (c Credit) Observe(now quota.Instant, p quota.Params, n int64) Credit {
	c.addDemand(now, p, n)
	return c
}

func (c *Credit) addDemand(now quota.Instant, p quota.Params, n int64) {
	n = min(n, maxDemand/demandScale)
	c.Demand = min(c.demandAt(now, p)+n*demandScale*int64(quota.Second)/int64(memoryOf(p)), maxDemand)
	c.DemandAt = max(c.DemandAt, now)
}
