package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// endUnlimited ends a request that no enforced policy applies to.
func (l *Limiter) endUnlimited(req *Request, now quota.Instant) Status {
	l.startTrials(req, now)
	l.countLifted(req, now)
	l.NoteSent(req, now)
	req.rules.Tally.Add(req.rules.Tally.All(), ruleset.CountAllowed, 1)
	if req.bypassed {
		l.Stats.Bypassed++
		return Bypassed
	}
	l.Stats.Unlimited++
	return Unlimited
}

// allowRequest ends a request that all its buckets allow.
func (l *Limiter) allowRequest(req *Request, now quota.Instant) Status {
	if req.trial != nil {
		return l.passTrial(req.trial, now)
	}
	l.Stats.Allowed++
	// Count the request, each policy once.
	t := &req.rules.Tally
	t.Add(t.All(), ruleset.CountAllowed, 1)
	noted := none
	for i := range req.Hits {
		h := &req.Hits[i]
		l.Stats.Decided[h.source]++
		if h.ticket.Name > 0 {
			l.reserveCentral(req, h, &leasing.Reservation{Need: h.ticket.Need, Name: h.ticket.Name})
		}
		if i == 0 || req.Hits[i-1].Policy != h.Policy {
			t.Add(h.Policy, ruleset.CountAllowed, 1)
		}
		if isUnsure(h.source) && int(h.Policy) != noted {
			if noted == none {
				t.Add(t.All(), ruleset.CountUnsure, 1)
			}
			noted = int(h.Policy)
			t.Add(h.Policy, ruleset.CountUnsure, 1)
		}
		if h.knowsBucket() {
			req.countLeft(h, h.Remaining)
		}
	}
	// Try the policies in shadow, and let the request go or hold it back.
	l.startTrials(req, now)
	l.unpauseRequest(req)
	l.countLifted(req, now)
	status := l.holdUntilTurn(req, now)
	if status == Allowed {
		l.NoteSent(req, now)
	} else {
		l.holdBack(req, now)
	}
	return status
}

// refuseRequest ends a request that the ith hit refuses. The tokens and places that the request has
// taken go back: grants and turns in queues by giveBack, places in flight by stopCounting,
// reservations by refund. Tokens charged at other buckets are lost, and giveBack counts them unless
// they were of a share.
func (l *Limiter) refuseRequest(req *Request, i int, reason policy.Reason, now quota.Instant) Status {
	if req.trial != nil {
		return l.failTrial(req.trial, i, reason, now)
	}
	// Find the wait and the reason, over all hits.
	if req.Refusing = i; req.paused {
		l.lookAround(req, now)
	}
	i, reason = req.chooseRefusal(i, reason)
	h := &req.Hits[i]
	reason = decide.Blame(reason, h.seat.Elsewhere || h.doubt)
	req.Refusing, req.Reason = i, reason
	if req.paused { // Requests beside it may have caused a penalty meanwhile.
		h.Retry = max(h.Retry, l.penaltyLeft(req, now))
	}
	if reason == policy.ReasonSuspended {
		h.Known, h.Remaining, h.Reset = true, 0, quota.Never
	}
	// Count the refusal.
	req.Source = h.refusedBy(reason)
	l.Stats.Decided[req.Source]++
	l.Stats.Refused++
	t := &req.rules.Tally
	for _, of := range [...]uint32{h.Policy, t.All()} {
		t.Add(of, ruleset.CountRefused, 1)
		if isUnsure(req.Source) {
			t.Add(of, ruleset.CountUnsure, 1)
		}
	}
	if reason == policy.ReasonPenalty { // No bucket was asked for tokens.
		l.unpauseRequest(req)
		return Refused
	}
	// Give back the tokens, and count an offence.
	l.giveBack(req, now)
	if reason == policy.ReasonQuota {
		req.countLeft(h, 0)
	}
	if answer.Kinds[reason].Counts {
		h.Retry = max(h.Retry, l.countOffence(req, h.Policy, false, now))
	}
	// Try the candidates, and free the places and reservations.
	l.startTrialsOfRefused(req, now)
	l.stopCounting(req, now)
	l.refundAll(req, now)
	l.unpauseRequest(req)
	return Refused
}

// Elsewhere reports whether a hit has no place in flight because other nodes hold the places.
func (h *Hit) Elsewhere() bool { return h.seat.Elsewhere }

// refusedBy returns the source of a refusal.
func (h *Hit) refusedBy(reason policy.Reason) policy.DecisionSource {
	switch {
	case reason == policy.ReasonAbsent, reason == policy.ReasonBadCost, reason == policy.ReasonTooDear,
		reason == policy.ReasonSuspended, reason == policy.ReasonSeveral:
		return policy.ByRequest
	case reason == policy.ReasonTooManyWaiting, reason == policy.ReasonContended:
		return policy.ByOverload
	case reason == policy.ReasonPenalty:
		return policy.ByPenalty
	case h.source == policy.ByLease:
		return policy.ByCachedDenial
	}
	return h.source
}

// isUnsure reports whether a source decides without the bucket.
func isUnsure(s policy.DecisionSource) bool {
	return s == policy.ByShare || s == policy.ByFailureAllow || s == policy.ByFailureDeny || s == policy.ByOverload
}

// CountWait counts a request that was held for a time, for the policies that it waited for.
func (req *Request) CountWait(held int64) {
	t := &req.rules.Tally
	t.Wait(t.All(), held)
	noted := none
	for i := range req.Hits {
		if h := &req.Hits[i]; h.ticket.Deadline != 0 && int(h.Policy) != noted {
			noted = int(h.Policy)
			t.Wait(h.Policy, held)
		}
	}
}

// giveBack returns the tokens that were granted to a request, and its turns in leaky buckets, to
// the next requests, because the request is refused or its client has gone. Tokens charged at other
// buckets are lost, and counted unless they were of a share.
func (l *Limiter) giveBack(req *Request, now quota.Instant) {
	for i := range req.Hits {
		h := &req.Hits[i]
		switch {
		case h.passed && h.release != 0:
			l.leaveTurn(h.turn(), now)
		case h.ticket.Outcome == leasing.Granted, h.ticket.Name > 0:
			l.leases.GiveBack(now, &h.ticket)
		case h.limit.InFlight: // stopCounting frees its place.
		case h.commit != nil: // refund releases its reservation.
		case h.passed && h.Cost > 0 && h.source <= policy.ByOptimistic && req.trial == nil:
			l.Stats.ChargedInVain++
		}
	}
}

// Cancel ends a paused or delayed request whose client went away. A paused request gives back its
// tokens like a refused request. A delayed request gives up its last turn, its places and its
// reservations; its charges stay.
func (l *Limiter) Cancel(req *Request, now quota.Instant) {
	if req.paused {
		l.Stats.Gone++
		if l.leases != nil {
			l.leases.Cancel(req.Stream)
		}
		l.giveBack(req, now)
		l.unpauseRequest(req)
	} else if freed, ok := l.delays.Leave(req.Stream); ok {
		l.leaveTurn(freed, now)
	}
	l.refundAll(req, now)
	l.stopCounting(req, now)
}

// End ends a Lasting request whose stream is over: answered, reset by either side, timed out, or
// upgraded and closed.
func (l *Limiter) End(req *Request, life Life) {
	l.settleAll(req, life)
	l.stopCounting(req, life.Ended)
}

// stopCounting removes a request from the counts that it is in while it lasts: adaptive limits,
// places in flight, and seats in queues.
//
//go:noinline
func (l *Limiter) stopCounting(req *Request, now quota.Instant) {
	req.Lasting = false
	l.leaveGuards(req, now)
	l.vacatePlaces(req, 0, now)
	l.endTrials(req, now)
}
