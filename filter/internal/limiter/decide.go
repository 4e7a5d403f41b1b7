package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/ruleset"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Begin decides a new request, or pauses it.
func (l *Limiter) Begin(req *Request, rules *ruleset.Rules, a *match.Attributes, now quota.Instant) Status {
	req.reset(rules)
	switch l.match(req, a) {
	case match.Off:
		l.countLifted(req, now)
		l.Stats.Bypassed++
		return Bypassed
	case match.Banned:
		l.Stats.Banned++
		if req.Ban == match.AddressBan { // The set's own: operators' bans hold in each version.
			rules.Tally.Add(rules.Tally.All(), ruleset.CountRefused, 1)
		}
		return Banned
	case match.Exempt:
		l.Stats.Exempt++
		rules.Tally.Add(rules.Tally.All(), ruleset.CountAllowed, 1)
		return Unlimited
	}
	for i := range req.Hits {
		if req.Hits[i].Verdict == match.Suspended { // Before any penalty: no wait helps.
			return l.refuse(req, i, policy.ReasonSuspended, now)
		}
	}
	if len(req.subjects) > 0 {
		if i := l.penalised(req, now); i != none {
			return l.refuseKnowing(req, i, policy.ReasonPenalty, now)
		}
	}
	if len(req.Hits) == 0 {
		return l.unlimited(req, now)
	}
	for i := range req.Hits {
		if reason, refuses := decide.RefusesAlone(req.Hits[i].Verdict); refuses {
			return l.refuse(req, i, reason, now)
		}
	}
	return l.decide(req, now)
}

// Resume goes on with a request once one of its tickets or seats has ended. It returns Paused while
// others are open, unless the one that has ended refuses the request. A request that does not wait
// stays as it is, and Resume returns Paused.
func (l *Limiter) Resume(req *Request, now quota.Instant) Status {
	if !req.paused { // It was resolved twice, and decided at the first time.
		return Paused
	}
	worst, unanswered := l.readSeats(req, now), false
	if worst == none && req.isWaiting() {
		return Paused
	}
	if req.refuses {
		return l.readAround(req, now)
	}
	for i := range req.Hits {
		h := &req.Hits[i]
		if !h.asked {
			continue
		}
		h.asked = false
		switch l.readTicket(req, h, now) {
		case refused:
			worst = req.later(worst, i)
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
		return l.refuse(req, worst, req.Hits[worst].reason, now)
	}
	return l.decide(req, now)
}

// maxRounds bounds how often the hits of a request are gone through. A further round follows where
// the control plane could not be asked, so that on_failure decides some of them.
const maxRounds = 3

// decide charges all buckets of the request, or none. A single bucket is charged at first sight. Of
// several each is looked at before the first is charged, so that a request which one refuses costs
// nothing at the others. If another worker is faster between look and charge, what was charged
// already is lost, and counted: see giveBack.
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
			return l.allow(req, now)
		}
	}
	return l.refuse(req, 0, policy.ReasonContended, now)
}

// takeAndAsk decides the open hits, and asks the control plane for the tokens that are missing. It
// returns undecided unless the request is refused, or now waits.
func (l *Limiter) takeAndAsk(req *Request, now quota.Instant, do mode) Status {
	if worst := l.takeAll(req, now, do); worst != none {
		return l.refuseKnowing(req, worst, req.Hits[worst].reason, now)
	}
	if status := l.waitForPlaces(req, now); status != undecided {
		return status
	}
	return l.ask(req, now)
}

// takeAll looks at, or charges, every hit that has not passed and is not known to lack tokens. It
// returns the one that must wait longest of those that refuse, none if all pass. Charging ends at
// the first that refuses.
func (l *Limiter) takeAll(req *Request, now quota.Instant, do mode) (worst int) {
	worst = none
	for n := range req.Hits {
		i := req.nthToTake(n)
		h := &req.Hits[i]
		if h.passed || h.missing || h.limit.InFlight && req.partIsFull(i) {
			continue
		}
		switch l.take(req, h, now, do) {
		case passes:
			h.view = allows
		case missing:
			h.view, h.missing, h.source = unknown, true, policy.ByCentral
		case awaits:
			h.view, h.awaits = unknown, true
		case refused:
			h.view = refuses
			worst = req.later(worst, i)
			if do == charge {
				return worst
			}
		}
	}
	return worst
}

// nthToTake is the index of the hit that is taken as the n-th. The policies go in their order, and
// the limits of one policy from its last to its first: the last is the part that a reserve leaves
// to the request's class.
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

// partIsFull reports whether the part of the i-th hit's limit that a reserve leaves to the
// request's class has no place for it. Then the request takes no place of the whole limit either,
// also not while it waits: the other places are kept for other classes.
func (req *Request) partIsFull(i int) bool {
	for k := i + 1; k < len(req.Hits) && req.Hits[k].Policy == req.Hits[i].Policy; k++ {
		if part := &req.Hits[k]; part.awaits || part.view == refuses {
			return true
		}
	}
	return false
}
