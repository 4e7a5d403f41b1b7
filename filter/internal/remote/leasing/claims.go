package leasing

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// claimCalls bounds the calls with claims of permits under way. It is 2 because one call may hang.
const claimCalls = 2

// Claim sends the claims of permits that are due.
func (c *Client) Claim(now quota.Instant) {
	if c.flights == nil {
		return
	}
	_, c.flights.Away = c.Health.Away()
	for c.claiming < claimCalls {
		due := c.flights.Claims(now, wire.MaxItems)
		if len(due) == 0 {
			return
		}
		call := &call{sent: now, purpose: forClaims, items: make([]item, len(due))}
		for i := range due {
			from := &due[i]
			call.items[i] = item{
				kind: claims, need: Need{Bucket: from.Key, Limit: from.Limit, Version: from.Version, Cost: 1},
				waiting: from.Need, keep: from.Spare, claim: from.Seq, hold: from.Hold, lent: from.Lent,
			}
		}
		c.claiming++
		c.sendCall(call)
	}
}

// takeInClaim reads the answer to a claim.
func (c *Client) takeInClaim(it *item, a *wire.LeaseAnswer, now quota.Instant) {
	switch a.State {
	case wire.ItemUnknown: // Places in flight are recorded even so if For is above 0.
		c.Stats.ItemsUnknown++
		c.flights.Unanswered(it.need.Bucket, now)
	case wire.ItemUnavailable:
		c.flights.Unanswered(it.need.Bucket, now-quota.Instant(a.NotBefore))
	}
	c.flights.Learn(it.need.Bucket, it.claim,
		inflight.Answer{For: a.For, Permits: a.Keep, Free: a.Level, Doubt: min(a.NotBefore, inflight.TTL)}, now)
}
