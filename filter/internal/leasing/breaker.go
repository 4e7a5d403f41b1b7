package leasing

import "github.com/weir-proxy/weir/shared/quota"

const (
	failuresToOpen = 3
	firstPause     = 250 * quota.Millisecond
	longestPause   = 2 * quota.Second
)

// breaker keeps requests from waiting for a control plane that does not answer. It opens after failuresToOpen failures in a
// row, or one call that could not even be sent, and then lets one call through after each pause.
type breaker struct {
	failures  int
	since     quota.Instant
	openUntil quota.Instant
	pause     quota.Span
	probing   bool
}

// failed counts a failure at now. Jitter, in [0, 1024), spreads the probes of nodes that lost the control plane together.
func (b *breaker) failed(now quota.Instant, unsent bool, jitter int64) {
	if b.failures == 0 {
		b.since = now
	}
	b.failures++
	b.probing = false
	if b.failures < failuresToOpen && !unsent {
		return
	}
	b.pause = min(max(2*b.pause, firstPause), longestPause)
	b.openUntil = now + quota.Instant(b.pause/2+b.pause*quota.Span(jitter)/2048)
}

func (b *breaker) succeeded() { *b = breaker{} }

// open says whether a call must not be made at now.
func (b *breaker) open(now quota.Instant) bool {
	return b.openUntil != 0 && (now < b.openUntil || b.probing)
}

// sent notes a call that leaves while the breaker is half open: the only one until it is answered.
func (b *breaker) sent() { b.probing = b.openUntil != 0 }

// away says since when the control plane has not answered.
func (b *breaker) away() (since quota.Instant, away bool) { return b.since, b.failures > 0 }
