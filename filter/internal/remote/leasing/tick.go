package leasing

import "github.com/weir-proxy/weir/shared/quota"

// Tick sends the messages that no request causes, looks for tokens that other workers brought, and
// ends waits that are over.
func (c *Client) Tick(now quota.Instant) {
	c.reports.nodes = c.nodesAsked.Load()
	c.EndLate(now)
	c.shareOutHeld(now)
	c.Claim(now)
	c.sendReports(now)
	c.chargeDebts(now)
	c.sendSettlements(now)
	for _, r := range c.queue.compact() {
		c.checkRequest(r, now)
	}
	if c.Health.breaker.Tick(now, c.random.Jitter()) || now >= c.probesLate() {
		c.sendProbe(now)
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

// NextDue returns when Tick has something to do. It is now while requests wait, because other
// workers may bring tokens, and while the control plane does not answer.
func (c *Client) NextDue(now quota.Instant) quota.Instant {
	if c.queue.waiting > 0 || c.queue.trying > 0 || len(c.held) > 0 {
		return now
	}
	due := min(c.reports.nextDue(), c.Health.breaker.NextDue(now), c.LateAt(), c.probesLate())
	if len(c.queue.kept) > 0 {
		due = min(due, c.queue.keepBy)
	}
	if len(c.settlements.waiting) > 0 && !c.settlements.alone {
		due = min(due, max(c.settlements.next, now))
	}
	if c.mayReturn() {
		due = min(due, max(c.returns.nextDue(now), now))
	}
	if len(c.debts.all) > 0 {
		due = min(due, max(c.debts.next, now))
	}
	return due
}

// NextResume returns when a waiting request can go on: because TakeResolved has it, because EndLate
// will end it, or because Flush may send the call for which it gathers. It returns never if there
// is nothing to do.
func (c *Client) NextResume(now quota.Instant) quota.Instant {
	switch {
	case len(c.queue.resolved) > 0 || len(c.queue.tried) > 0:
		return now
	case c.Gathers():
		return min(c.pace.lastSent+quota.Instant(c.pace.gap()), c.LateAt())
	}
	return c.LateAt()
}
