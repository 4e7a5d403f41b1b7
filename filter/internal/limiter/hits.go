package limiter

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// match finds the limits that apply to the request. What it keeps of them is copied: the matcher
// serves other requests while this one waits.
func (l *Limiter) match(req *Request, a *match.Attributes) match.Access {
	found := l.matcher.Match(&req.rules.Index, a)
	req.Ban, req.BanEnds, req.BannedKey, req.bypassed = found.Ban, found.BanEnds, found.BannedKey, found.Bypassed
	req.consumer, req.exceptionsRevision = found.Consumer, found.ExceptionsRevision
	req.own, req.rank = append(req.own[:0], found.Own...), found.Rank
	if l.penalties != nil {
		req.subjects = append(req.subjects, found.Subjects...)
	}
	req.counted = append(req.counted, found.Counted...)
	for i := range found.Hits {
		m := &found.Hits[i]
		req.capCost(m)
		if m.Shadow {
			req.shadows = append(req.shadows, *m)
			continue
		}
		l.open(req, m)
	}
	return found.Access
}

// open adds a limit to those that decide the request.
func (l *Limiter) open(req *Request, m *match.Hit) {
	h := Hit{Hit: *m, view: unknown}
	h.queued = m.Cost > 0 && req.LimitOf(m).Algorithm.Queues()
	h.decideBy(l.deciderOf(req, m))
	req.Hits = append(req.Hits, h)
}

// decideBy hands an open hit to a decider.
func (h *Hit) decideBy(d *decider) {
	h.decider, h.source = d, d.source
	h.passed, h.missing, h.asked = false, false, false
	h.queued = h.queued && d.source != policy.ByFailureAllow && d.source != policy.ByFailureDeny
}

// deciderOf is the decider that a hit starts with.
func (l *Limiter) deciderOf(req *Request, m *match.Hit) *decider {
	p := req.policyOf(m)
	switch {
	case req.rules.Index.Adaptive(p) != nil:
		return &adaptiveLimit
	case req.LimitOf(m).InFlight:
		if p.Mode == policy.ModeLeased && l.leases != nil {
			return &inFlightLeased
		}
		return &inFlight
	case p.Mode == policy.ModeLocal, l.leases == nil:
		return &local
	case p.Mode == policy.ModeOptimistic:
		return &optimistic
	}
	return &leased
}
