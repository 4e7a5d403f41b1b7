package limiter

import (
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// describe fills in what clients see of a central bucket, by what the control plane said of it.
func (l *Limiter) describe(req *Request, h *Hit, level int64, fullAt, now quota.Instant) {
	burst := req.LimitOf(&h.Hit).Params.Burst
	h.Known, h.Remaining = true, min(max(level, 0), burst)
	h.Reset = quota.Span(max(fullAt-now, 0))
}

// use notes how full the bucket of a hit is by what is left in it, as far as this node knows. The
// queue of a leaky bucket holds requests and no tokens, and requests in flight are measured where
// they are counted.
func (req *Request) use(m *match.Hit, left int64) {
	limit := req.LimitOf(m)
	if !limit.InFlight && !limit.Algorithm.Queues() && !m.Candidate {
		req.rules.Tally.Use(m.Policy, left, limit.Params.Burst)
	}
}

// knowsBucket reports whether Remaining is that of the whole bucket: not what is left of a share,
// nor of what a node may use that has not heard of the bucket yet.
func (h *Hit) knowsBucket() bool {
	return h.Known && h.source != policy.ByShare && (h.source != policy.ByOptimistic || h.heard)
}

// describeRefusal fills in when the bucket will be full where nothing has said that, and moves it
// behind the wait that the refusal asks for.
func (l *Limiter) describeRefusal(req *Request, h *Hit) {
	if h.Retry == quota.Never {
		return
	}
	limit := req.LimitOf(&h.Hit)
	if limit.Algorithm.Windowed() && h.source != policy.ByShare {
		// Below the time of an answer the two are the same instant, seen at different times.
		if h.Retry > h.Reset+lease.Deadline {
			h.Reset = h.Retry
		}
		return
	}
	if h.source == policy.ByShare || h.source != policy.ByLocal && h.Reset == 0 {
		// When the wait is over the bucket holds the cost, and lacks the rest.
		p := limit.Params
		h.Reset = h.Retry + p.ResetAfter(quota.State{Debt: p.UnitsFor(p.Burst - h.Cost)}, 0)
	}
}
