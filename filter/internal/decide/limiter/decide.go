package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Begin decides a new request, or pauses it.
func (l *Limiter) Begin(req *Request, rules *ruleset.Rules, a *match.Attributes, now quota.Instant) Status {
	req.reset(rules)
	switch l.matchLimits(req, a) {
	case match.Off:
		l.countLifted(req, now)
		l.Stats.Bypassed++
		return Bypassed
	case match.Banned:
		l.Stats.Banned++
		if req.Ban == match.AddressBan { // A ban of the policy set itself; operators' bans hold in each version.
			rules.Tally.Add(rules.Tally.All(), ruleset.CountRefused, 1)
		}
		return Banned
	case match.Exempt:
		l.Stats.Exempt++
		rules.Tally.Add(rules.Tally.All(), ruleset.CountAllowed, 1)
		return Unlimited
	}
	// Refusals that need no bucket: suspended limits, penalties, missing values.
	for i := range req.Hits {
		if req.Hits[i].Verdict == match.Suspended { // Before any penalty, because no wait helps.
			return l.refuseRequest(req, i, policy.ReasonSuspended, now)
		}
	}
	if len(req.subjects) > 0 {
		if i := l.penalisedHit(req, now); i != none {
			return l.refuseKnowing(req, i, policy.ReasonPenalty, now)
		}
	}
	if len(req.Hits) == 0 {
		return l.endUnlimited(req, now)
	}
	for i := range req.Hits {
		if reason, refuses := decide.RefusesAlone(req.Hits[i].Verdict); refuses {
			return l.refuseRequest(req, i, reason, now)
		}
	}
	return l.decide(req, now)
}

// Resume continues a request after a ticket or seat of it has ended. It returns Paused while other
// tickets are open, unless the ended seat refuses the request. If the request does not wait, Resume
// changes nothing and returns Paused.
func (l *Limiter) Resume(req *Request, now quota.Instant) Status {
	if !req.paused { // It was resolved twice, and decided the first time.
		return Paused
	}
	worst, unanswered := l.readSeats(req, now), false
	if worst == none && req.isWaiting() {
		return Paused
	}
	if req.refuses {
		return l.readAround(req, now)
	}
	// Read the tickets that were asked for.
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.asked {
			continue
		}
		h.asked = false
		switch l.readTicket(req, h, now) {
		case refused:
			worst = req.longerWait(worst, i)
		case fellBack:
			unanswered = true
		}
	}
	if unanswered && req.trial == nil {
		if _, isAway := l.leases.Health.Away(); !isAway {
			l.Stats.Unanswered++
		}
	}
	if worst != none {
		return l.refuseRequest(req, worst, req.Hits[worst].reason, now)
	}
	return l.decide(req, now)
}

// maxRounds bounds the rounds over the hits of a request. A further round follows when the control
// plane could not be asked, so that on_failure decides some hits.
const maxRounds = 3

// decide charges all buckets of the request, or none. A single bucket is checked and charged in one
// step. With several buckets, all are checked before the first is charged, so a request that one
// bucket refuses costs nothing at the other buckets. If another worker takes tokens between check
// and charge, the tokens charged before are lost and counted: see giveBack.
func (l *Limiter) decide(req *Request, now quota.Instant) Status {
	for range maxRounds {
		if len(req.Hits) > 1 {
			if status := l.takeAndAsk(req, now, look); status != undecided {
				return status
			}
		}
		if status := l.takeAndAsk(req, now, charge); status != undecided {
			return status
		}
		if req.allPassed() {
			return l.allowRequest(req, now)
		}
	}
	return l.refuseRequest(req, 0, policy.ReasonContended, now)
}

// takeAndAsk decides the open hits, and asks the control plane for missing tokens. It returns
// undecided unless the request is refused, or now waits.
func (l *Limiter) takeAndAsk(req *Request, now quota.Instant, do mode) Status {
	if worst := l.takeAll(req, now, do); worst != none {
		return l.refuseKnowing(req, worst, req.Hits[worst].reason, now)
	}
	if status := l.waitForPlaces(req, now); status != undecided {
		return status
	}
	return l.askForTokens(req, now)
}

// takeAll checks or charges each hit that has not passed and does not lack tokens. It returns the
// refusing hit with the longest wait, or none if no hit refuses. Charging stops at the first hit
// that refuses.
func (l *Limiter) takeAll(req *Request, now quota.Instant, do mode) (worst int) {
	worst = none
	for n := range req.Hits {
		i := req.nthToTake(n)
		h := &req.Hits[i]
		if h.passed || h.missing || h.limit.InFlight && req.partIsFull(i) {
			continue
		}
		switch l.takeHit(req, h, now, do) {
		case passes:
			h.view = allows
		case missing:
			h.view, h.missing, h.source = unknown, true, policy.ByCentral
		case awaits:
			h.view, h.awaits = unknown, true
		case refused:
			h.view = refuses
			worst = req.longerWait(worst, i)
			if do == charge {
				return worst
			}
		}
	}
	return worst
}

// nthToTake returns the index of the hit that is taken nth. Policies keep their order. The limits
// of one policy go from the last to the first: the last is the part that a reserve leaves to the
// request's class.
func (req *Request) nthToTake(n int) int {
	from, to := n, n
	for from > 0 && req.Hits[from-1].Policy == req.Hits[n].Policy {
		from--
	}
	for to+1 < len(req.Hits) && req.Hits[to+1].Policy == req.Hits[n].Policy {
		to++
	}
	return from + to - n
}

// partIsFull reports whether a reserve leaves the request's class no place in the ith hit's limit.
// Then the request takes no place of the whole limit either, also while it waits: the other places
// are kept for other classes.
func (req *Request) partIsFull(i int) bool {
	for k := i + 1; k < len(req.Hits) && req.Hits[k].Policy == req.Hits[i].Policy; k++ {
		if part := &req.Hits[k]; part.awaits || part.view == refuses {
			return true
		}
	}
	return false
}
