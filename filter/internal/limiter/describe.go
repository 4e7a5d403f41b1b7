package limiter

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// describe fills in what clients see of a central bucket, by what the control plane said of it.
func (l *Limiter) describe(req *Request, h *Hit, level int64, fullAt, now quota.Instant) {
	burst := req.LimitOf(&h.Hit).Params.Burst
	h.Known, h.Remaining = true, min(max(level, 0), burst)
	h.Reset = quota.Span(max(fullAt-now, 0))
}

// describeRefusal fills in when the bucket will be full, where the bucket itself was not asked.
func (l *Limiter) describeRefusal(req *Request, h *Hit) {
	if h.Retry == quota.Never {
		return
	}
	limit := req.LimitOf(&h.Hit)
	if limit.Algorithm.Windowed() && h.source != ByShare {
		// Below the time of an answer the two are the same instant, seen at different times.
		if h.Retry > h.Reset+lease.Deadline {
			h.Reset = h.Retry
		}
		return
	}
	if h.source == ByShare || h.source != ByLocal && h.Reset == 0 {
		// When the wait is over the bucket holds the cost, and lacks the rest.
		p := limit.Params
		h.Reset = h.Retry + p.ResetAfter(quota.State{Debt: p.UnitsFor(p.Burst - h.Cost)}, 0)
	}
}
