package leasing

import "github.com/weir-proxy/weir/shared/quota"

const (
	failuresToOpen   = 3
	successesToClose = 2
	silenceToOpen    = quota.Second
	firstPause       = 250 * quota.Millisecond
	longestPause     = quota.Second
)

// breaker keeps requests from waiting for a control plane that does not answer. It opens after failuresToOpen failures in a row,
// after silenceToOpen in which calls were made and none was answered, or at one call that could not even be sent. While it is
// open no request asks: one probe leaves after each pause, and successesToClose probes answered in a row, a pause apart, close it.
type breaker struct {
	// failures in a row while it is closed, the first at since. opened grows each time it opens, and with each probe that fails.
	failures int
	since    quota.Instant
	opened   uint32
	// underWay calls have not ended. asking is when the first call since the last answer left, ended when the last one ended.
	underWay      int
	asking, ended quota.Instant
	// probeAt is when the next probe may leave; 0: closed.
	probeAt   quota.Instant
	pause     quota.Span
	probing   bool
	successes int
}

// sent notes a call that leaves. Calls further apart than silenceToOpen do not make one silence.
func (b *breaker) sent(now quota.Instant) {
	if b.underWay == 0 && (b.asking == 0 || now-b.ended > quota.Instant(silenceToOpen)) {
		b.asking = now
	}
	b.underWay++
}

// answered counts an answer. Jitter, in [0, 1024), spreads the probes of nodes that lost the control plane together. A call that
// left before the breaker opened says nothing of how things are now.
func (b *breaker) answered(now quota.Instant, probe bool, jitter int64) {
	b.end(now)
	if b.asking = 0; b.underWay > 0 {
		b.asking = now
	}
	switch {
	case b.probeAt == 0:
		b.failures = 0
	case probe:
		b.probing = false
		if b.successes++; b.successes < successesToClose {
			b.probeAt = now + Spread(firstPause, jitter)
			return
		}
		*b = breaker{underWay: b.underWay, asking: b.asking, ended: b.ended, opened: b.opened}
	}
}

// failed counts a call that ended without an answer.
func (b *breaker) failed(now quota.Instant, probe, unsent bool, jitter int64) {
	b.end(now)
	switch {
	case b.probeAt == 0:
		if b.failures == 0 {
			b.since = now
		}
		if b.failures++; b.failures >= failuresToOpen || unsent || now-b.asking >= quota.Instant(silenceToOpen) {
			b.open(now, jitter)
		}
	case probe:
		b.probing, b.successes = false, 0
		b.open(now, jitter)
	}
}

// busy counts a call that the control plane has answered, if only to say that it is overloaded: it is there, and is asked for less.
func (b *breaker) busy(now quota.Instant) {
	b.end(now)
	if b.asking = 0; b.underWay > 0 {
		b.asking = now
	}
}

func (b *breaker) end(now quota.Instant) {
	b.underWay--
	b.ended = now
}

// tick opens the breaker after a silence, and says whether a probe is due; it must leave then.
func (b *breaker) tick(now quota.Instant, jitter int64) (probe bool) {
	if b.probeAt == 0 {
		if b.underWay > 0 && now-b.asking >= quota.Instant(silenceToOpen) {
			if b.failures == 0 {
				b.failures, b.since = 1, b.asking
			}
			b.open(now, jitter)
		}
		return false
	}
	probe = !b.probing && now >= b.probeAt
	b.probing = b.probing || probe
	return probe
}

// hasten lets the next probe leave at once.
func (b *breaker) hasten(now quota.Instant) {
	if b.probeAt != 0 {
		b.probeAt = min(b.probeAt, now)
	}
}

func (b *breaker) open(now quota.Instant, jitter int64) {
	b.opened++
	b.pause = Pause(b.pause)
	b.probeAt = now + Spread(b.pause, jitter)
}

func (b *breaker) isOpen() bool { return b.probeAt != 0 }

// away says since when the control plane has not answered.
func (b *breaker) away() (since quota.Instant, away bool) { return b.since, b.failures > 0 }

// Pause is the pause before trying again that follows one of a span; 0 before the first.
func Pause(last quota.Span) quota.Span { return min(max(2*last, firstPause), longestPause) }

// Spread is at least half of a pause, and more by the jitter in [0, 1024).
func Spread(pause quota.Span, jitter int64) quota.Instant {
	return quota.Instant(pause/2 + pause*quota.Span(jitter)/2048)
}
