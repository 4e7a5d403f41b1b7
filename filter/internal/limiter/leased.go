package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// takeLeased decides by what this node holds of a central bucket and knows about it.
func takeLeased(l *Limiter, req *Request, h *Hit, now quota.Instant, charging bool) finding {
	need := l.need(req, h)
	s := &l.spend
	*s = leasing.Spend{Need: need, Now: now, Charge: charging && h.Cost > 0}
	tooDear := h.Cost > need.Params.Burst
	if tooDear {
		s.Cost = 0 // What is left is all that there is to find out.
	}
	// A refusal counts also if it could not be stored.
	if err := l.store.Update(bucketstore.Leased, h.Key, now, s); err != nil && s.State != leasing.Exhausted {
		return contended
	}
	if s.Known || s.State == leasing.Ready {
		l.describe(req, h, s.Level, s.FullAt, now)
	}
	if tooDear {
		h.refuse(policy.ReasonTooDear, quota.Never)
		if s.State == leasing.Missing && l.askable() == missing {
			return missing
		}
		return refused
	}
	h.keep, h.keepBy, h.spent = s.Keep, s.KeepBy, s.Spent
	switch s.State {
	case leasing.Ready:
		h.passed, h.Retry = charging, 0
		l.keep(req, h)
		return passes
	case leasing.Exhausted:
		h.doubt = s.Doubt
		return h.refuse(policy.ReasonQuota, quota.Span(s.Until-now))
	}
	h.holds, h.heard, h.Retry = s.Holds, s.Known, s.Lacks
	h.lacks, h.inHand = s.Lacks > 0, s.InHand
	return l.askable()
}

// askable is missing if the control plane can be asked for what a hit lacks.
func (l *Limiter) askable() finding {
	if _, isAway := l.leases.Health.Away(); isAway {
		return away
	}
	return missing
}

// keep notes the tokens that a hit wants beyond its own.
func (l *Limiter) keep(req *Request, h *Hit) {
	if h.keep > 0 || h.spent != [2]lease.Spent{} {
		l.leases.Keep(l.need(req, h), h.keep, h.keepBy, h.spent)
		h.keep, h.spent = 0, [2]lease.Spent{}
	}
}

func (l *Limiter) need(req *Request, h *Hit) leasing.Need {
	p, limit := req.policyOf(&h.Hit), req.LimitOf(&h.Hit)
	reserves := req.rules.Index.Commit(p) != nil
	keeps := p.Mode == policy.ModeLeased && !reserves && !limit.Suspended()
	n := leasing.Need{
		Bucket: h.Key, Limit: h.Limit, Version: req.rules.Index.Version(), Params: limit.Params, Cost: h.Cost,
		Strict: !keeps, Optimistic: p.Mode == policy.ModeOptimistic,
		Algorithm: limit.Algorithm, Reserves: reserves, Beside: len(req.Hits) > 1,
	}
	if limit.Own > 0 {
		n.Quota, n.Burst = limit.Quota, limit.Params.Burst
		n.Most = req.rules.Index.Limit(h.Limit).Params
	}
	if p.ByConsumer {
		n.ExceptionsRevision = req.exceptionsRevision
		if h.Certainty != match.Certain {
			n.Consumer, n.Position, n.Root = req.consumer, h.Position+1, limit.Root
		}
		if h.Certainty == match.GuessedTier {
			n.Position = wire.TierGuessed
		}
	}
	return n
}
