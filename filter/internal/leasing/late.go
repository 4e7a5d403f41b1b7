package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// EndLate fails the calls that take longer than requests wait. Such a call counts once, as a call
// without an answer. If its answer comes all the same, it says what was charged.
func (c *Client) EndLate(now quota.Instant) {
	for len(c.underWay) > 0 && now >= c.underWay[0].lateAt() {
		call := c.underWay[0]
		c.forgetCall(call)
		call.late = true
		c.pace.slow = lease.Deadline
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

// lookAfter ends a request whose deadline has passed, or that no call carries and for which tokens
// have come meanwhile. A call that carries it may be younger than the request.
func (c *Client) lookAfter(r *request, now quota.Instant) {
	if r.asked {
		if now >= r.deadline {
			c.failRequest(r, now)
		}
		return
	}
	inHand := c.takeInHand(r, now)
	t := r.tickets[0]
	switch {
	case t.Outcome == Granted:
		c.queue.end(r)
	case inHand.State == Exhausted && (!inHand.KeepCall || now >= r.deadline):
		t.Outcome, t.Until, t.Level, t.FullAt = Refused, inHand.Until, inHand.Level, inHand.FullAt
		c.queue.end(r)
	case now >= r.deadline-quota.Instant(lease.Deadline-c.unsentFor()):
		c.failRequest(r, now)
	case r.line.call == nil && inHand.State != Exhausted: // Otherwise to ask is of no use.
		c.queue.markReady(r.line)
	}
	c.queue.forget(r.line)
}

// takeInHand spends tokens that this node holds on a request, which other workers may have brought.
// A request for several buckets takes none: it would take them one by one. An optimistic bucket has
// none, and who only Looks takes none.
func (c *Client) takeInHand(r *request, now quota.Instant) *Spend {
	t, s := r.tickets[0], &c.spend
	*s = Spend{Need: t.Need, Now: now, Charge: true}
	if len(r.tickets) > 1 || t.Need.Optimistic || t.Need.Looks {
		s.State = Missing
		return s
	}
	if err := c.store.Update(bucketstore.Leased, t.Need.Bucket, now, s); err != nil {
		s.State, s.KeepCall = Missing, false
	}
	if s.Keep > 0 || s.Spent != [2]lease.Spent{} { // The credit is marked as being asked for.
		c.Keep(t.Need, s.Keep, s.KeepBy, s.Spent)
	}
	if s.State == Ready {
		t.Outcome, t.Until, t.Level, t.FullAt = Granted, s.Until, s.Level, s.FullAt
		t.inHand, t.from = true, s.From
	}
	return s
}

// again reports whether the answer comes too late for tokens that were to be used soon. The
// requests go on waiting and ask once more.
func (s *lineAnswer) again() bool {
	for i := range s.answers {
		if s.answers[i].State != wire.ItemGranted {
			return false
		}
	}
	return s.late() && !s.unknown && s.now < lease.Expiry(s.call.sent, lease.Deadline)
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

// serveFromKept gives tokens that came to keep to the requests that wait for their bucket.
func (c *Client) serveFromKept(bucket keyhash.Key, now quota.Instant) {
	if l := c.queue.lines[bucket]; l != nil && l.call == nil {
		for _, r := range slices.Clone(l.waiting) {
			c.lookAfter(r, now)
		}
	}
}

func (c *Client) forgetCall(call *call) {
	if i := slices.Index(c.underWay, call); i >= 0 {
		c.underWay = slices.Delete(c.underWay, i, i+1)
	}
}

// after is when a wait is over.
func after(now quota.Instant, wait quota.Span) quota.Instant {
	if wait == quota.Never {
		return quota.Forever
	}
	return now + quota.Instant(wait)
}

// late reports whether the tokens of granted requests must not be used any more.
func (s *lineAnswer) late() bool { return s.now >= s.expiry }
