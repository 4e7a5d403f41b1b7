package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// askForTokens queues a ticket for each hit that lacks tokens. The control plane grants all of them
// or none. It returns undecided unless the request now waits, or is refused because it cannot wait.
func (l *Limiter) askForTokens(req *Request, now quota.Instant) Status {
	if !req.chooseAsked() {
		return undecided
	}
	// One ticket for each hit to ask about.
	l.together = l.together[:0]
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.asked {
			continue
		}
		if h.queued && l.delays.Full() && req.trial == nil {
			l.Stats.TooManyWaiting++
			return l.refuseRequest(req, i, policy.ReasonTooManyWaiting, now)
		}
		h.ticket = leasing.Ticket{
			Stream: req.Stream, Trial: req.trial.id(), Need: h.need, Deadline: req.deadline,
		}
		l.together = append(l.together, &h.ticket)
	}
	// If the control plane cannot be asked, on_failure decides.
	if !l.leases.Ask(now, l.together...) {
		l.fallBackUnasked(req, now)
		return undecided
	}
	if !req.Asked() && req.trial == nil {
		l.Stats.Waited++
	}
	for i := range req.Hits {
		if h := &req.Hits[i]; h.asked {
			req.deadline = h.ticket.Deadline
			l.prefetchTokens(h)
		}
	}
	l.pauseRequest(req, now)
	l.leases.Flush(now)
	return Paused
}

// chooseAsked marks the hits to ask about now, and reports whether there are any. It marks all hits
// together, except the hits of optimistic policies: these come last, policy by policy. Their
// granted tokens serve no other request, so they are asked for when no other hit can refuse.
func (req *Request) chooseAsked() bool {
	last, some := none, false
	for i := range req.Hits {
		h := &req.Hits[i]
		h.asked = false
		switch {
		case !h.missing || h.passed:
		case h.rule.Mode == policy.ModeOptimistic:
			last = i
		default:
			h.asked, some = true, true
		}
	}
	if some || last == none {
		return some
	}
	for i := range req.Hits {
		h := &req.Hits[i]
		h.asked = h.missing && !h.passed && h.Policy == req.Hits[last].Policy
	}
	return true
}

// readTicket reads the outcome of a hit's ticket.
func (l *Limiter) readTicket(req *Request, h *Hit, now quota.Instant) ruling {
	t := &h.ticket
	if t.Outcome == leasing.Granted && req.trial == nil { // No trial looks around.
		l.looked.note(&h.Key, now, false)
	}
	// An answer decides the hit.
	switch {
	case t.Outcome == leasing.Granted && now < t.Until:
		h.passed, h.view, h.Retry = true, allows, 0
		l.describe(h, t.Level, t.FullAt, now)
		if h.queued {
			h.release = now + quota.Instant(t.Delay)
		}
		return h.checkLeast()
	case t.Outcome == leasing.Spared:
		h.view, h.Retry = allows, 0
		l.describe(h, t.Level, t.FullAt, now)
		return missing
	case t.Outcome == leasing.Refused:
		h.view, h.doubt = refuses, t.Doubt
		l.describe(h, t.Level, t.FullAt, now)
		switch {
		case t.Suspended:
			return h.refuse(policy.ReasonSuspended, quota.Never)
		case t.Until == quota.Forever:
			return h.refuse(policy.ReasonTooDear, quota.Never)
		}
		return h.refuse(policy.ReasonQuota, max(quota.Span(t.Until-now), 1))
	}
	if h.Retry == quota.Never { // It only asked for the tokens left. Its cost is above the burst in any case.
		return refused
	}
	// Tokens that came in time but are read too late count as charged, like tokens that came too
	// late.
	t.Charged = t.Charged || t.Outcome == leasing.Granted
	since := l.leases.Health.FailingSince(now)
	if t.Outcome == leasing.Failed {
		since = min(since, t.Since)
	}
	l.fallBack(req, h, now, since)
	return fellBack
}
