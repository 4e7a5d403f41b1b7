package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// describe sets the hit's figures for clients from the control plane's answer about a central
// bucket.
func (l *Limiter) describe(h *Hit, level int64, fullAt, now quota.Instant) {
	burst := h.limit.Params.Burst
	h.Known, h.Remaining = true, min(max(level, 0), burst)
	h.Reset = quota.Span(max(fullAt-now, 0))
}

// countLeft records the fill level of a hit's bucket from the tokens left, as far as this node
// knows. It skips leaky buckets, whose queue holds requests and no tokens, and requests in flight,
// which are measured where they are counted.
func (req *Request) countLeft(h *Hit, left int64) {
	if !h.limit.InFlight && !h.limit.Algorithm.Queues() && !h.Candidate {
		req.rules.Tally.Use(h.Policy, left, h.limit.Params.Burst)
	}
}

// knowsBucket reports whether Remaining is the level of the whole bucket. It is not for a share,
// and not for an optimistic bucket that this node has had no answer about.
func (h *Hit) knowsBucket() bool {
	return h.Known && h.source != policy.ByShare && (h.source != policy.ByOptimistic || h.heard)
}

// losesTokens reports whether tokens granted to a refused request cannot go back to the control
// plane.
func (h *Hit) losesTokens() bool {
	return h.ticket.Outcome == leasing.Granted && h.limit.Algorithm.Windowed() && !h.limit.Algorithm.Lends()
}

// chooseRefusal finds the time at which the request passes, for a refusal by the ith hit: when all
// other hits let it through too, as far as this node knows. It returns the hit and the reason of
// the refusal: the ith hit, or another hit that never lets the request through.
func (req *Request) chooseRefusal(i int, reason policy.Reason) (refusing int, why policy.Reason) {
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
