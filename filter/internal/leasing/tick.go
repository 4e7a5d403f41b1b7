package leasing

import "github.com/weir-proxy/weir/shared/quota"

// Tick sends what only a tick sends, looks again for tokens that other workers brought, and ends
// what has waited too long.
func (c *Client) Tick(now quota.Instant) {
	c.reports.nodes = c.nodesAsked.Load()
	c.EndLate(now)
	c.shareOutHeld(now)
	c.Claim(now)
	c.report(now)
	c.charge(now)
	c.sendSettled(now)
	for _, r := range c.queue.compact() {
		c.lookAfter(r, now)
	}
	if c.Health.breaker.Tick(now, c.random.Jitter()) || now >= c.probesLate() {
		c.probe(now)
	}
	if c.Health.breaker.IsOpen() {
		return
	}
	c.Flush(now)
	if now >= c.queue.keepBy {
		c.sendKept(now)
	}
	c.sendReturns(now)
}

// NextDue is when Tick has something to do: at once while requests wait, which other workers may
// serve, and while the control plane does not answer.
func (c *Client) NextDue(now quota.Instant) quota.Instant {
	if c.queue.waiting > 0 || c.queue.trying > 0 || len(c.held) > 0 {
		return now
	}
	due := min(c.reports.next(), c.Health.breaker.NextDue(now), c.LateAt(), c.probesLate())
	if len(c.queue.kept) > 0 {
		due = min(due, c.queue.keepBy)
	}
	if len(c.settlements.waiting) > 0 && !c.settlements.alone {
		due = min(due, max(c.settlements.next, now))
	}
	if c.mayReturn() {
		due = min(due, max(c.returns.due(now), now))
	}
	if len(c.debts.all) > 0 {
		due = min(due, max(c.debts.next, now))
	}
	return due
}

// NextResume is when requests that wait go on, because TakeResolved has them or EndLate ends them,
// or when what gathers for a call leaves by Flush; never if nothing is so.
func (c *Client) NextResume(now quota.Instant) quota.Instant {
	switch {
	case len(c.queue.resolved) > 0 || len(c.queue.tried) > 0:
		return now
	case c.Gathers():
		return min(c.pace.lastSent+quota.Instant(c.pace.gap()), c.LateAt())
	}
	return c.LateAt()
}
