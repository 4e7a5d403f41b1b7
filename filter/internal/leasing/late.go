package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// EndLate fails the calls that take longer than requests wait. Such a call counts once, as a call
// without an answer. If its answer comes all the same, it says what was charged.
func (c *Client) EndLate(now quota.Instant) {
	for len(c.underWay) > 0 && now >= c.underWay[0].lateAt() {
		call := c.underWay[0]
		c.forgetCall(call)
		call.late = true
		c.fail(call, now, rpc.NoAnswer)
	}
}

// LateAt is when the first call under way is late; never if no request waits in any.
func (c *Client) LateAt() quota.Instant {
	if len(c.underWay) == 0 {
		return quota.Forever
	}
	return c.underWay[0].lateAt()
}

func (c *Client) forgetCall(call *call) {
	if i := slices.Index(c.underWay, call); i >= 0 {
		c.underWay = slices.Delete(c.underWay, i, i+1)
	}
}

// unsentFor is how long a request waits that no call carries: less where calls are late, since the
// rest of its time would be in vain.
func (c *Client) unsentFor() quota.Span {
	switch _, away := c.Health.Away(); {
	case away:
		return 0
	case c.room.pressed():
		return lease.Deadline / 2
	}
	return lease.Deadline
}
