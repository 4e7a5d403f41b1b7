package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// matchLimits finds the limits that apply to the request. It copies the results, because the
// matcher serves other requests while this request waits.
func (l *Limiter) matchLimits(req *Request, a *match.Attributes) match.Access {
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
		if m.Shadow {
			req.shadows = append(req.shadows, *m)
			continue
		}
		l.addOpenHit(req, m)
	}
	return found.Access
}

// addOpenHit adds a limit to the request's hits, with its decider. A cost that is a reservation is
// at most the burst: otherwise a caller that asks for much would always be refused, whatever its
// request costs in the end.
func (l *Limiter) addOpenHit(req *Request, m *match.Hit) *Hit {
	h := req.addHit(m)
	if h.commit != nil {
		h.Cost = min(h.Cost, h.limit.Params.Burst)
	}
	h.queued = h.Cost > 0 && h.limit.Algorithm.Queues()
	d := l.deciderOf(req, h)
	if h.decideBy(d); d == &leased || d == &optimistic {
		req.fillNeed(h)
	}
	return h
}

// addHit adds a hit to the request, and resolves it.
func (req *Request) addHit(m *match.Hit) *Hit {
	n := len(req.Hits)
	req.Hits = append(req.Hits, Hit{bound: req.resolveLimit(m), view: unknown})
	if n > 0 {
		req.Hits[0].need.Beside, req.Hits[n].need.Beside = true, true
	}
	return &req.Hits[n]
}

// resolveLimit returns a hit with its policy, limit and commit.
func (req *Request) resolveLimit(m *match.Hit) bound {
	rule := req.rules.Index.Policy(m.Policy)
	return bound{Hit: *m, rule: rule, limit: req.LimitOf(m), commit: req.rules.Index.Commit(rule)}
}

// decideBy hands an open hit to a decider.
func (h *Hit) decideBy(d *decider) {
	h.decider, h.source = d, d.source
	h.passed, h.missing, h.asked = false, false, false
	h.queued = h.queued && d.source != policy.ByFailureAllow && d.source != policy.ByFailureDeny
}

// deciderOf returns the decider that a hit starts with.
func (l *Limiter) deciderOf(req *Request, h *Hit) *decider {
	switch {
	case req.rules.Index.Adaptive(h.rule) != nil:
		return &adaptiveLimit
	case h.limit.InFlight:
		if h.rule.Mode == policy.ModeLeased && l.leases != nil {
			return &inFlightLeased
		}
		return &inFlight
	case h.rule.Mode == policy.ModeLocal, l.leases == nil:
		return &local
	case h.rule.Mode == policy.ModeOptimistic:
		return &optimistic
	}
	return &leased
}

// fillNeed sets the need of a hit, for calls to the control plane.
func (req *Request) fillNeed(h *Hit) {
	reserves, beside := h.commit != nil, h.need.Beside
	h.need = leasing.Need{
		Bucket: h.Key, Limit: h.Limit, Version: req.rules.Index.Version(), Params: h.limit.Params, Cost: h.Cost,
		Strict:     h.rule.Mode != policy.ModeLeased || reserves || h.limit.Suspended(),
		Optimistic: h.rule.Mode == policy.ModeOptimistic,
		Algorithm:  h.limit.Algorithm, Reserves: reserves, Beside: beside,
	}
	n := &h.need
	if h.limit.Own > 0 {
		n.Quota, n.Burst = h.limit.Quota, h.limit.Params.Burst
		n.Most = req.rules.Index.Limit(h.Limit).Params
	}
	if h.rule.ByConsumer {
		n.ExceptionsRevision = req.exceptionsRevision
		if h.Certainty != match.Certain {
			n.Consumer, n.Position, n.Root = req.consumer, h.Position+1, h.limit.Root
		}
		if h.Certainty == match.GuessedTier {
			n.Position = wire.TierGuessed
		}
	}
}
