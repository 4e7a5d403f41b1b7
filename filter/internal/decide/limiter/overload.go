package limiter

import (
	"github.com/weir-proxy/weir/filter/internal/load/inflight"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// shedSpread is the number of seconds over which the retries of shed requests are spread.
const shedSpread = 4

// takeAdaptive enters a request into an adaptive limit, in the mode look too: the request leaves if
// another limit refuses it.
func takeAdaptive(l *Limiter, req *Request, h *Hit, now quota.Instant, _ mode) ruling {
	switch room, state := l.enterGuard(req, h, now); state {
	case inflight.Held:
		h.passed, h.Remaining = true, room
		return passes
	case inflight.Contended:
		return contended
	}
	return h.refuse(policy.ReasonShed, comeAgain+quota.Span(req.Stream*2654435761>>16%shedSpread)*quota.Second)
}

// enterGuard enters a request into its adaptive limit. It returns the places left.
//
//go:noinline
func (l *Limiter) enterGuard(req *Request, h *Hit, now quota.Instant) (room int64, state inflight.State) {
	if l.guards == nil {
		return 0, inflight.Held
	}
	ix, a := &req.rules.Index, &l.asking
	a.Stream, a.Key, a.Rank, a.Classes = req.Stream, h.Key, req.rank, ix.Classes()
	a.Policy, a.Limit = ix.Text(h.rule.Name), ix.Adaptive(h.rule)
	e, state := l.guards.Enter(a, now)
	if state == inflight.Held {
		req.entries = append(req.entries, e)
	}
	return e.Room, state
}

// Guarded reports whether an adaptive limit has let the request through.
func (req *Request) Guarded() bool { return len(req.entries) > 0 }

// WantsReports reports whether such a limit uses the reports of upstreams about themselves.
func (req *Request) WantsReports() bool {
	for i := range req.entries {
		if req.entries[i].WantsReports() {
			return true
		}
	}
	return false
}

// NoteSent notes that a request goes to its upstream. Callers call it only for Delayed requests.
//
//go:noinline
func (l *Limiter) NoteSent(req *Request, now quota.Instant) {
	for i := range req.entries {
		l.guards.Send(&req.entries[i], now)
	}
}

// Answered notes the time that the upstream took to begin its answer to a Guarded request. The time
// that the request was held before does not count. Answers that are errors, or not from the
// upstream, do not count either.
//
//go:noinline
func (l *Limiter) Answered(req *Request, latency quota.Span) {
	for i := range req.entries {
		l.guards.Answer(&req.entries[i], latency)
	}
}

// Reported takes in the utilisation that the upstream reported with its answer.
//
//go:noinline
func (l *Limiter) Reported(req *Request, utilisation float64) {
	for i := range req.entries {
		l.guards.Report(&req.entries[i], utilisation)
	}
}

// leaveGuards removes a request from its adaptive limits.
//
//go:noinline
func (l *Limiter) leaveGuards(req *Request, now quota.Instant) {
	for i := range req.entries {
		l.guards.Leave(&req.entries[i], now)
	}
	req.entries = req.entries[:0]
}

// holdBack excludes a request from the count of its adaptive limits until NoteSent, while a leaky
// bucket holds it back. The limits let it through when it came, and do not decide about it again.
//
//go:noinline
func (l *Limiter) holdBack(req *Request, now quota.Instant) {
	for i := range req.entries {
		l.guards.HoldBack(&req.entries[i], now)
	}
}
