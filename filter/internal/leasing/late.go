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

// EndLate fails the calls that take longer than requests wait, or longer than callTimeout if none
// does. Such a call counts once, as a call without an answer. If its answer comes all the same, it
// says what was charged. EndLate gives up the late calls that are lost.
func (c *Client) EndLate(now quota.Instant) {
	for i := 0; i < len(c.underWay); {
		call := c.underWay[i]
		if now < call.lateAt() {
			i++
			continue
		}
		c.underWay = slices.Delete(c.underWay, i, i+1)
		c.late = append(c.late, call)
		call.late = true
		if call.asks > 0 {
			c.pace.slow = lease.Deadline
		}
		c.fail(call, now, rpc.NoAnswer)
	}
	for _, call := range c.late {
		if call.lostAt != 0 && now >= call.lostAt && !call.over {
			c.over(call, now)
		}
	}
}

// outrun notes an answer. The control plane does not stand still, so calls that left before the
// answered one, and so long ago that they should be answered too, are lost, unless their answers
// come soon.
func (c *Client) outrun(by *call, now quota.Instant) {
	for _, calls := range [2][]*call{c.late, c.underWay} {
		for _, call := range calls {
			if call.lostAt == 0 && call.sent < by.sent && now >= call.sent+quota.Instant(lease.Deadline) {
				call.lostAt = now + quota.Instant(callTimeout-lease.Deadline)
			}
		}
	}
}

// probesLate is when a probe finds out whether the control plane stands still or has lost the calls
// that are late: what they carry is not sent again meanwhile, so nothing else may ask. It is never
// if that is known, or an open breaker has probes of its own.
func (c *Client) probesLate() quota.Instant {
	if c.Health.breaker.IsOpen() {
		return quota.Forever
	}
	for _, call := range c.late {
		if call.lostAt == 0 {
			return max(c.lastSent, call.sent) + quota.Instant(callTimeout)
		}
	}
	return quota.Forever
}

// LateAt is when EndLate has something to do; never if no call is under way.
func (c *Client) LateAt() quota.Instant {
	at := quota.Forever
	for _, call := range c.underWay {
		at = min(at, call.lateAt())
	}
	for _, call := range c.late {
		if call.lostAt != 0 && !call.over {
			at = min(at, call.lostAt)
		}
	}
	return at
}

// lookAfter ends a request whose deadline has passed, or that no call carries and for which tokens
// have come meanwhile. A call that carries it may be younger than the request.
func (c *Client) lookAfter(r *request, now quota.Instant) {
	if r.call != nil {
		if now >= r.deadline {
			c.failRequest(r, now)
		}
		return
	}
	inHand := c.takeInHand(r, now, false)
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

func (c *Client) failRequest(r *request, now quota.Instant) {
	for _, t := range r.tickets {
		t.Outcome, t.Since, t.lateCall = Failed, now, r.call
	}
	c.queue.end(r)
}

// takeInHand spends tokens that this node holds on a request, which other workers may have brought.
// A request for several buckets takes none: it would take them one by one. An optimistic bucket has
// none, and who only Looks takes none. Ahead of a call that leaves at once it asks for none to
// keep.
func (c *Client) takeInHand(r *request, now quota.Instant, ahead bool) *Spend {
	t, s := r.tickets[0], &c.spend
	*s = Spend{Need: t.Need, Now: now, Charge: true}
	s.Strict = s.Strict || ahead
	if len(r.tickets) > 1 || t.Need.Optimistic || t.Need.Looks {
		s.State = Missing
		return s
	}
	if err := c.store.Update(bucketstore.Leased, t.Need.Bucket, now, s); err != nil {
		s.State, s.KeepCall = Missing, false
	}
	if s.Keep > 0 || s.Spent != [2]lease.Spent{} { // The credit is marked as being asked for.
		c.Prefetch(t.Need, s.Keep, s.KeepBy, s.Spent)
	}
	if s.State == Ready {
		t.Outcome, t.Until, t.Level, t.FullAt = Granted, s.Until, s.Level, s.FullAt
		t.inHand, t.from = true, s.From
	}
	return s
}

// shareNothing gives a ticket for which a call brought no tokens its outcome. It keeps waiting
// while another worker is about to bring tokens to keep; the tick looks again. Those that this
// worker asks for come out of what was too little.
func (c *Client) shareNothing(s *lineAnswer, r *request, t *Ticket, wait quota.Span) {
	inHand := c.takeInHand(r, s.now, false)
	switch {
	case t.Outcome == Granted:
	case wait == quota.Never:
		t.Outcome, t.Until = Refused, quota.Forever
	case inHand.KeepCall && s.now < r.deadline && !r.line.keepsWith(s.call):
	case wait > 0:
		t.Outcome, t.Until = Refused, s.now+quota.Instant(wait)
		t.FullAt = max(t.FullAt, inHand.FullAt) // Requests before it may have had tokens in hand.
		if inHand.Known {
			t.Level = min(t.Level, inHand.Level)
		}
	case s.short:
		t.Outcome = Spared
	default:
		t.Outcome, t.Since = Failed, s.now
	}
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

// serveFromHand gives tokens in hand to the first requests of a line whose call has ended: what
// came to keep would lie idle beside those that they ask for.
func (c *Client) serveFromHand(l *line, now quota.Instant) {
	for len(l.waiting) > 0 && c.takeInHand(l.waiting[0], now, true).State == Ready {
		c.queue.end(l.waiting[0])
	}
	c.queue.forget(l)
}

func (c *Client) forgetCall(call *call) {
	calls := &c.underWay
	if call.late {
		calls = &c.late
	}
	if i := slices.Index(*calls, call); i >= 0 {
		*calls = slices.Delete(*calls, i, i+1)
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
