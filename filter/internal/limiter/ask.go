package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// ask queues a ticket for each hit that lacks tokens. The control plane grants all of them or none.
// It returns undecided unless the request now waits, or is refused because it cannot.
func (l *Limiter) ask(req *Request, now quota.Instant) Status {
	if !req.chooseAsked() {
		return undecided
	}
	l.together = l.together[:0]
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.asked {
			continue
		}
		if h.queued && l.delays.Full() && req.trial == nil {
			l.Stats.TooManyWaiting++
			return l.refuse(req, i, policy.ReasonTooManyWaiting, now)
		}
		h.ticket = leasing.Ticket{
			Stream: req.Stream, Trial: req.trial.id(), Need: h.need, Deadline: req.deadline,
		}
		l.together = append(l.together, &h.ticket)
	}
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
			l.prefetch(h)
		}
	}
	l.pause(req, now)
	l.leases.Flush(now)
	return Paused
}

// chooseAsked marks the hits to ask about now, and reports false if there are none: all together,
// but those of optimistic policies last and policy by policy. What is granted of these serves no
// other request, so it is asked for when nothing else can refuse.
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

// readTicket takes in how the ticket of a hit has ended.
func (l *Limiter) readTicket(req *Request, h *Hit, now quota.Instant) ruling {
	t := &h.ticket
	if t.Outcome == leasing.Granted && req.trial == nil { // No trial looks around.
		l.looked.note(&h.Key, now, false)
	}
	switch {
	case t.Outcome == leasing.Granted && now < t.Until:
		h.passed, h.view, h.Retry = true, allows, 0
		l.describe(h, t.Level, t.FullAt, now)
		if h.queued {
			h.release = now + quota.Instant(t.Delay)
		}
		return h.suffices()
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
	if h.Retry == quota.Never { // It was asked how much is left, and is too dear in any case.
		return refused
	}
	// Tokens that came in time and are read too late are charged as those that came too late.
	t.Charged = t.Charged || t.Outcome == leasing.Granted
	since := l.leases.Health.FailingSince(now)
	if t.Outcome == leasing.Failed {
		since = min(since, t.Since)
	}
	l.fallBack(req, h, now, since)
	return fellBack
}
