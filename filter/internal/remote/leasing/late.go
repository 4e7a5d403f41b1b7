package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// EndLate fails the calls that take longer than lease.Deadline if requests wait in them, or else
// callTimeout. Such a call counts once as unanswered. A late answer still shows which tokens were
// charged. EndLate also gives up late calls that are lost.
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
		c.failCall(call, now, rpc.NoAnswer)
	}
	for _, call := range c.late {
		if call.lostAt != 0 && now >= call.lostAt && !call.over {
			c.endCall(call, now)
		}
	}
}

// noteOutrun handles an answer. It proves that the control plane works. So calls that left before
// the answered call, and more than lease.Deadline ago, count as lost unless their answers come
// soon.
func (c *Client) noteOutrun(by *call, now quota.Instant) {
	for _, calls := range [2][]*call{c.late, c.underWay} {
		for _, call := range calls {
			if call.lostAt == 0 && call.sent < by.sent && now >= call.sent+quota.Instant(lease.Deadline) {
				call.lostAt = now + quota.Instant(callTimeout-lease.Deadline)
			}
		}
	}
}

// probesLate returns when to send a probe because of late calls. The probe finds out whether the
// control plane stands still or has lost those calls. Their items are not sent again meanwhile, so
// no other call asks. It returns never if that is known, or if the open breaker sends probes.
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

// LateAt returns when EndLate has something to do; never if no call is under way.
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

// checkRequest ends a request whose deadline has passed. It also serves a request that no call
// carries, if tokens have arrived meanwhile. The call that carries a request may be younger than
// the request.
func (c *Client) checkRequest(r *request, now quota.Instant) {
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
		c.queue.endRequest(r)
	case inHand.State == Exhausted && (!inHand.KeepCall || now >= r.deadline):
		t.Outcome, t.Until, t.Level, t.FullAt = Refused, inHand.Until, inHand.Level, inHand.FullAt
		c.queue.endRequest(r)
	case now >= r.deadline-quota.Instant(lease.Deadline-c.unsentFor()):
		c.failRequest(r, now)
	case r.line.call == nil && inHand.State != Exhausted: // Otherwise to ask is of no use.
		c.queue.markReady(r.line)
	}
	c.queue.forgetLine(r.line)
}

// failRequest ends a request with the outcome Failed.
func (c *Client) failRequest(r *request, now quota.Instant) {
	for _, t := range r.tickets {
		t.Outcome, t.Since, t.lateCall = Failed, now, r.call
	}
	c.queue.endRequest(r)
}

// takeInHand spends tokens in hand on a request; another worker may have brought them. A request
// for several buckets takes none, because it would take them separately. Optimistic buckets have
// none, and a request that Looks takes none. Ahead of a call that leaves at once it asks for no
// tokens to keep.
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

// endWithoutTokens sets the outcome of a ticket for which a call brought no tokens. The ticket
// keeps waiting while another worker is about to bring tokens to keep; the tick checks again.
// Tokens to keep that this worker itself asked for cannot help: they come from the same bucket that
// had too few.
func (c *Client) endWithoutTokens(s *lineAnswer, r *request, t *Ticket, wait quota.Span) {
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

// mustAskAgain reports whether tokens that had to be used within lease.Soon came too late. The
// requests keep waiting and ask once more.
func (s *lineAnswer) mustAskAgain() bool {
	for i := range s.answers {
		if s.answers[i].State != wire.ItemGranted {
			return false
		}
	}
	return s.late() && !s.unknown && s.now < lease.Expiry(s.call.sent, lease.Deadline)
}

// unsentFor returns how long a request waits if no call carries it. It is shorter while calls are
// late, because an answer would not come in the rest of the time.
func (c *Client) unsentFor() quota.Span {
	switch _, away := c.Health.Away(); {
	case away:
		return 0
	case c.room.isPressed():
		return lease.Deadline / 2
	}
	return lease.Deadline
}

// serveFromKept gives arrived tokens to keep to the requests that wait for their bucket.
func (c *Client) serveFromKept(bucket keyhash.Key, now quota.Instant) {
	if l := c.queue.lines[bucket]; l != nil && l.call == nil {
		for _, r := range slices.Clone(l.waiting) {
			c.checkRequest(r, now)
		}
	}
}

// serveFromHand gives tokens in hand to the first requests of a line whose call has ended.
// Otherwise the tokens to keep would lie idle while the requests ask for more.
func (c *Client) serveFromHand(l *line, now quota.Instant) {
	for len(l.waiting) > 0 && c.takeInHand(l.waiting[0], now, true).State == Ready {
		c.queue.endRequest(l.waiting[0])
	}
	c.queue.forgetLine(l)
}

// forgetCall removes a call from the calls under way, or from the late calls.
func (c *Client) forgetCall(call *call) {
	calls := &c.underWay
	if call.late {
		calls = &c.late
	}
	if i := slices.Index(*calls, call); i >= 0 {
		*calls = slices.Delete(*calls, i, i+1)
	}
}

// instantAfter returns the end of a wait that begins now.
func instantAfter(now quota.Instant, wait quota.Span) quota.Instant {
	if wait == quota.Never {
		return quota.Forever
	}
	return now + quota.Instant(wait)
}

// late reports whether granted tokens must not be used any more.
func (s *lineAnswer) late() bool { return s.now >= s.expiry }
