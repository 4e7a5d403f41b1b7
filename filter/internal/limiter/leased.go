package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeLeased decides by what this node holds of a central bucket and knows about it.
func takeLeased(l *Limiter, _ *Request, h *Hit, now quota.Instant, do mode) ruling {
	s := &l.spend
	*s = leasing.Spend{Need: h.need, Now: now, Charge: do == charge && h.Cost > 0}
	tooDear := h.Cost > h.need.Params.Burst
	if tooDear {
		s.Cost = 0 // What is left is all that there is to find out.
	}
	// A refusal counts also if it could not be stored.
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
	h.ahead, h.aheadBy, h.spent = s.Keep, s.KeepBy, s.Spent
	switch s.State {
	case leasing.Ready:
		h.passed, h.Retry = do == charge, 0
		l.prefetch(h)
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
func (l *Limiter) askable() ruling {
	if _, isAway := l.leases.Health.Away(); isAway {
		return away
	}
	return missing
}

// prefetch notes the tokens that a hit wants beyond its own.
func (l *Limiter) prefetch(h *Hit) {
	if h.ahead > 0 || h.spent != [2]lease.Spent{} {
		l.leases.Prefetch(h.need, h.ahead, h.aheadBy, h.spent)
		h.ahead, h.spent = 0, [2]lease.Spent{}
	}
}
