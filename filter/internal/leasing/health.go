package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/quota"
)

// Health is what a worker knows about the control plane: by its own calls, and by what it hears
// from the other workers of the process.
type Health struct {
	breaker rpc.Breaker
	// reason is how the last failed call failed.
	reason rpc.Outcome
	// answered is when the last answer came.
	answered quota.Instant
	// heard is since when another worker has had no answer; 0: there is no such worker.
	heard quota.Instant
}

// Away reports whether a request must not wait for the control plane now, and since when it has not
// answered: because it does not answer this worker, or because it does not answer another one and
// this one has had no answer since then.
func (h *Health) Away() (since quota.Instant, away bool) {
	if h.hearsay() {
		return h.heard, true
	}
	return h.breaker.Since(), h.breaker.IsOpen()
}

func (h *Health) hearsay() bool { return h.heard != 0 && h.answered < h.heard }

// FailingSince is the start of the failures that led to a Failed ticket; now if they are over.
func (h *Health) FailingSince(now quota.Instant) quota.Instant {
	if h.hearsay() {
		return h.heard
	}
	if since, failing := h.breaker.Failing(); failing {
		return since
	}
	return now
}

// Open reports whether this worker's own calls fail, since when, and how the last one did. Times
// grows each time that they begin to, and with each probe that fails.
func (h *Health) Open() (since quota.Instant, times uint32, how rpc.Outcome, open bool) {
	return h.breaker.Since(), h.breaker.Opened(), h.reason, h.breaker.IsOpen()
}

// Hear notes since when the control plane has not answered some worker of this process; 0: there is
// no such worker.
func (h *Health) Hear(since quota.Instant) { h.heard = since }

// Hasten has this worker look at once whether the control plane is back: it is for another worker.
func (h *Health) Hasten(now quota.Instant) { h.breaker.Hasten(now) }

// succeed notes an answer. It reports whether that ends an outage.
func (h *Health) succeed(now quota.Instant, probe bool, jitter int64) (recovered bool) {
	open := h.breaker.IsOpen()
	h.breaker.Answered(now, probe, jitter)
	h.answered = now
	return open && !h.breaker.IsOpen()
}

// fail notes a call that ended without an answer.
func (h *Health) fail(now quota.Instant, how rpc.Outcome, probe bool, jitter int64) {
	h.reason = how
	if how == rpc.Overloaded && !probe {
		h.breaker.Overloaded(now)
	} else {
		h.breaker.Failed(now, probe, how == rpc.Unsent, jitter)
	}
}
