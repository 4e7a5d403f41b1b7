package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/shared/quota"
)

// Health is a worker's knowledge about the control plane: from its own calls, and from the other
// workers of the process.
type Health struct {
	breaker rpc.Breaker
	// reason is the failure of the last failed call.
	reason rpc.Outcome
	// answered is when the last answer came.
	answered quota.Instant
	// heard is the instant since which another worker has had no answer; 0: there is no such
	// worker.
	heard quota.Instant
}

// Away reports whether a request must not wait for the control plane now, and since when the
// control plane does not answer. It is away if it does not answer this worker, or if it does not
// answer another worker and this worker has had no answer since then.
func (h *Health) Away() (since quota.Instant, away bool) {
	if h.othersSayAway() {
		return h.heard, true
	}
	return h.breaker.Since(), h.breaker.IsOpen()
}

// othersSayAway reports whether another worker has no answer, and this worker has had none since
// then.
func (h *Health) othersSayAway() bool { return h.heard != 0 && h.answered < h.heard }

// FailingSince returns the start of the failures that led to a Failed ticket; now if they are over.
func (h *Health) FailingSince(now quota.Instant) quota.Instant {
	if h.othersSayAway() {
		return h.heard
	}
	if since, failing := h.breaker.Failing(); failing {
		return since
	}
	return now
}

// Open reports whether this worker's own calls fail, since when, and how the last call failed.
// Times grows with each begin of failures, and with each probe that fails.
func (h *Health) Open() (since quota.Instant, times uint32, how rpc.Outcome, open bool) {
	return h.breaker.Since(), h.breaker.Opened(), h.reason, h.breaker.IsOpen()
}

// Hear notes the instant since which the control plane has not answered some worker of this
// process; 0: there is no such worker.
func (h *Health) Hear(since quota.Instant) { h.heard = since }

// Hasten makes this worker probe the control plane at once, because it answers another worker.
func (h *Health) Hasten(now quota.Instant) { h.breaker.Hasten(now) }

// noteAnswer notes an answer. It reports whether the answer ends an outage.
func (h *Health) noteAnswer(now quota.Instant, probe bool, jitter int64) (recovered bool) {
	open := h.breaker.IsOpen()
	h.breaker.Answered(now, probe, jitter)
	h.answered = now
	return open && !h.breaker.IsOpen()
}

// noteFailure notes a call that ended without an answer.
func (h *Health) noteFailure(now quota.Instant, how rpc.Outcome, probe bool, jitter int64) {
	h.reason = how
	if how == rpc.Overloaded && !probe {
		h.breaker.Overloaded(now)
	} else {
		h.breaker.Failed(now, probe, how == rpc.Unsent, jitter)
	}
}
