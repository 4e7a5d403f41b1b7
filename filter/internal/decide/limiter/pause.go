package limiter

import "github.com/weir-proxy/weir/shared/quota"

// pauseRequest makes a request wait. The request leaves its adaptive limits meanwhile, and its
// rules stay in memory.
func (l *Limiter) pauseRequest(req *Request, now quota.Instant) {
	l.stepBack(req, now)
	if !req.paused {
		req.paused = true
		req.rules.Paused++
	}
}

// unpauseRequest releases the rules of a request that waited.
func (l *Limiter) unpauseRequest(req *Request) {
	if req.paused {
		req.paused = false
		req.rules.Paused--
	}
}

// stepBack removes a request that begins to wait from its adaptive limits: it is not on its way to
// the upstream, and must not crowd out other requests. It enters again when it goes on.
func (l *Limiter) stepBack(req *Request, now quota.Instant) {
	if len(req.entries) == 0 {
		return
	}
	l.leaveGuards(req, now)
	for i := range req.Hits {
		if h := &req.Hits[i]; h.decider == &adaptiveLimit {
			h.passed = false
		}
	}
}
