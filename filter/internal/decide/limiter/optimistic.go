package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/quota"
)

// takeOptimistic decides on this node, within its slack, and reports the used tokens afterwards. A
// request beyond the slack waits for the control plane, as in strict mode.
func takeOptimistic(l *Limiter, _ *Request, h *Hit, now quota.Instant, do mode) ruling {
	use, err := l.useOptimistic(h, now, do)
	if err != nil {
		return contended
	}
	h.Known, h.Remaining, h.Reset, h.Retry = true, use.Remaining, use.Reset, use.Result.RetryAfter
	h.holds, h.heard, h.doubt = use.Remaining, use.Heard, use.Doubt
	if use.Result.Allowed {
		h.passed = do == charge
		return passes
	}
	if _, isAway := l.leases.Health.Away(); isAway && h.Retry != quota.Never {
		return away
	}
	if use.Asks {
		return missing
	}
	return h.refuse(h.bucketReason(), h.Retry)
}

// useOptimistic checks this node's use of an optimistic bucket, or uses more of it.
func (l *Limiter) useOptimistic(h *Hit, now quota.Instant, do mode) (*leasing.Use, error) {
	u := &l.use
	*u = leasing.Use{Need: h.need, Now: now, Charge: do == charge}
	if !h.Late { // Places kept from a class are kept exactly: the control plane decides.
		u.Slack = l.leases.Slack(u.Params)
	}
	err := l.store.Update(bucketstore.Optimistic, h.Key, now, u)
	if err == nil && u.Reports {
		l.leases.Report(now, u.Need, u.Due)
	}
	return u, err
}
