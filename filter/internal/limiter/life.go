package limiter

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// Life is what became of a Lasting request.
type Life struct {
	// Sent is when the request went on towards its upstream, Answered when the headers of a
	// response came, from the upstream or from another filter. Each is 0 if that did not happen.
	// Ended is when the stream was over, however it ended.
	Sent, Answered, Ended quota.Instant
	// Properties are Envoy's attributes at the end of the stream.
	Properties match.Properties
}

// End ends a Lasting request whose stream is over: answered, reset by either side, timed out or
// upgraded and closed.
func (l *Limiter) End(req *Request, life Life) {
	l.settleAll(req, life)
	l.stopCounting(req, life.Ended)
}

// stopCounting ends what counts a request while it lasts: adaptive limits, places in flight and
// seats in queues.
//
//go:noinline
func (l *Limiter) stopCounting(req *Request, now quota.Instant) {
	req.Lasting = false
	l.leaveGuards(req, now)
	l.vacate(req, 0, now)
}
