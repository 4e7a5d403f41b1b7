package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeLeased decides by the node's tokens and knowledge of a central bucket.
func takeLeased(l *Limiter, _ *Request, h *Hit, now quota.Instant, do mode) ruling {
	s := &l.spend
	*s = leasing.Spend{Need: h.need, Now: now, Charge: do == charge && h.Cost > 0}
	tooDear := h.Cost > h.need.Params.Burst
	// A cost above the burst is refused; only the tokens left are of interest.
	if tooDear {
		s.Cost = 0
	}
	// A refusal counts even if it could not be stored.
	if err := l.store.Update(bucketstore.Leased, h.Key, now, s); err != nil && s.State != leasing.Exhausted {
		return contended
	}
	if s.Known || s.State == leasing.Ready {
		l.describe(h, s.Level, s.FullAt, now)
	}
	if tooDear {
		h.refuse(policy.ReasonTooDear, quota.Never)
		if s.State == leasing.Missing && l.askable() == missing {
			return missing
		}
		return refused
	}
	// Decide by the node's knowledge.
	h.ahead, h.aheadBy, h.spent = s.Keep, s.KeepBy, s.Spent
	switch s.State {
	case leasing.Ready:
		h.passed, h.Retry = do == charge, 0
		l.prefetchTokens(h)
		return passes
	case leasing.Exhausted:
		h.doubt = s.Doubt
		return h.refuse(policy.ReasonQuota, quota.Span(s.Until-now))
	}
	h.holds, h.heard, h.Retry = s.Holds, s.Known, s.Lacks
	h.lacks, h.inHand = s.Lacks > 0, s.InHand
	return l.askable()
}

// askable returns missing if the control plane can be asked for a hit's tokens, or else away.
func (l *Limiter) askable() ruling {
	if _, isAway := l.leases.Health.Away(); isAway {
		return away
	}
	return missing
}

// prefetchTokens asks for the hit's tokens to keep.
func (l *Limiter) prefetchTokens(h *Hit) {
	if h.ahead > 0 || h.spent != [2]lease.Spent{} {
		l.leases.Prefetch(h.need, h.ahead, h.aheadBy, h.spent)
		h.ahead, h.spent = 0, [2]lease.Spent{}
	}
}
