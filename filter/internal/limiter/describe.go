package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// describe fills in what clients see of a central bucket, by what the control plane said of it.
func (l *Limiter) describe(h *Hit, level int64, fullAt, now quota.Instant) {
	burst := h.limit.Params.Burst
	h.Known, h.Remaining = true, min(max(level, 0), burst)
	h.Reset = quota.Span(max(fullAt-now, 0))
}

// use notes how full the bucket of a hit is by what is left in it, as far as this node knows. The
// queue of a leaky bucket holds requests and no tokens, and requests in flight are measured where
// they are counted.
func (req *Request) use(h *Hit, left int64) {
	if !h.limit.InFlight && !h.limit.Algorithm.Queues() && !h.Candidate {
		req.rules.Tally.Use(h.Policy, left, h.limit.Params.Burst)
	}
}

// knowsBucket reports whether Remaining is that of the whole bucket: not what is left of a share,
// nor of what a node may use that has not heard of the bucket yet.
func (h *Hit) knowsBucket() bool {
	return h.Known && h.source != policy.ByShare && (h.source != policy.ByOptimistic || h.heard)
}

// losesTokens reports whether tokens that came for a refused request cannot go back to the control
// plane.
func (h *Hit) losesTokens() bool {
	return h.ticket.Outcome == leasing.Granted && h.limit.Algorithm.Windowed() && !h.limit.Algorithm.Lends()
}

// tellWait finds out when a request passes that the i-th hit refuses for a reason: when all other
// hits let it through as well, as far as this node knows. It returns what refuses it: the hit at
// hand, or one that never lets it through.
func (req *Request) tellWait(i int, reason policy.Reason) (refusing int, why policy.Reason) {
	h := &req.Hits[i]
	h.Retry = max(h.Retry, 1)
	if !answer.Kinds[reason].Waits {
		h.Retry = quota.Never
		return i, reason
	}
	wait := h.Retry
	for k := range req.Hits {
		switch other := &req.Hits[k]; {
		case other.passed:
			if other.losesTokens() && other.Remaining < other.Cost {
				wait = max(wait, other.Reset)
			}
		case other.Retry == quota.Never && other.reason == policy.ReasonSuspended:
			return k, other.reason
		case other.Retry == quota.Never:
			return k, policy.ReasonTooDear
		default:
			wait = max(wait, other.Retry)
		}
	}
	h.Retry = wait
	return i, reason
}
