package rpc

import (
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	failuresToOpen   = 3
	successesToClose = 2
	silenceToOpen    = quota.Second
)

// probePauses are the pauses between the probes of an open breaker.
var probePauses = Backoff{First: 250 * quota.Millisecond, Longest: quota.Second}

// Breaker keeps requests from waiting for a control plane that does not answer. It opens after
// failuresToOpen failures in a row, after silenceToOpen in which calls were made and none was
// answered, or after one call that could not be sent. While it is open no request asks. One probe
// leaves after each pause; successesToClose answered probes in a row, a pause apart, close it. The
// zero value is closed.
type Breaker struct {
	// failures counts failures in a row while the breaker is closed; the first was at since.
	failures int
	since    quota.Instant
	// opened grows each time that the breaker opens, and with each failed probe.
	opened uint32
	// underWay counts the calls that have not ended.
	underWay int
	// asking is when the first call since the last answer left. ended is when the last call ended.
	asking, ended quota.Instant
	// probeAt is when the next probe may leave; 0: the breaker is closed.
	probeAt quota.Instant
	// pause is the pause before the next probe, before jitter.
	pause quota.Span
	// probing: a probe is under way. successes counts the answered probes in a row.
	probing   bool
	successes int
}

// IsOpen reports whether requests must not wait for the control plane.
func (b *Breaker) IsOpen() bool { return b.probeAt != 0 }

// Since returns when the failures began that opened the breaker.
func (b *Breaker) Since() quota.Instant { return b.since }

// Opened returns how often calls began to fail, plus the probes that failed since.
func (b *Breaker) Opened() uint32 { return b.opened }

// Failing returns since when calls fail, also before there are enough failures to open the breaker.
func (b *Breaker) Failing() (since quota.Instant, failing bool) { return b.since, b.failures > 0 }

// Sent notes a call that leaves. Calls further apart than silenceToOpen do not make one silence.
func (b *Breaker) Sent(now quota.Instant) {
	if b.underWay == 0 && (b.asking == 0 || now-b.ended > quota.Instant(silenceToOpen)) {
		b.asking = now
	}
	b.underWay++
}

// Answered counts an answer. The jitter spreads the probes of nodes that lost the control plane
// together. A call that left before the breaker opened does not show the present state.
func (b *Breaker) Answered(now quota.Instant, probe bool, jitter int64) {
	b.endSilence(now)
	switch {
	case !b.IsOpen():
		b.failures = 0
	case probe:
		b.probing = false
		b.successes++
		if b.successes < successesToClose {
			b.probeAt = now + Spread(probePauses.First, jitter)
			return
		}
		*b = Breaker{underWay: b.underWay, asking: b.asking, ended: b.ended, opened: b.opened}
	}
}

// Overloaded counts a call with the answer that the control plane is overloaded: it is there, so
// the breaker neither opens nor closes.
func (b *Breaker) Overloaded(now quota.Instant) { b.endSilence(now) }

// Failed counts a call that ended without an answer, or could not be sent.
func (b *Breaker) Failed(now quota.Instant, probe, unsent bool, jitter int64) {
	b.endCall(now)
	switch {
	case !b.IsOpen():
		if b.failures == 0 {
			b.since = now
		}
		b.failures++
		silent := now-b.asking >= quota.Instant(silenceToOpen)
		if b.failures >= failuresToOpen || unsent || silent {
			b.openFor(now, jitter)
		}
	case probe:
		b.probing, b.successes = false, 0
		b.openFor(now, jitter)
	}
}

// Tick opens the breaker after a silence. It reports whether a probe is due; then the probe must
// leave.
func (b *Breaker) Tick(now quota.Instant, jitter int64) (probe bool) {
	if b.IsOpen() {
		probe = !b.probing && now >= b.probeAt
		b.probing = b.probing || probe
		return probe
	}
	if b.underWay > 0 && now-b.asking >= quota.Instant(silenceToOpen) {
		if b.failures == 0 {
			b.failures, b.since = 1, b.asking
		}
		b.openFor(now, jitter)
	}
	return false
}

// NextDue returns when Tick has something to do.
func (b *Breaker) NextDue(now quota.Instant) quota.Instant {
	switch {
	case b.IsOpen(): // Another worker's answer may hasten the probe.
		return now
	case b.underWay > 0:
		return b.asking + quota.Instant(silenceToOpen)
	}
	return quota.Forever
}

// Hasten lets the next probe leave at once.
func (b *Breaker) Hasten(now quota.Instant) {
	if b.IsOpen() {
		b.probeAt = min(b.probeAt, now)
	}
}

// openFor opens the breaker for its next pause.
func (b *Breaker) openFor(now quota.Instant, jitter int64) {
	b.opened++
	b.pause = probePauses.After(b.pause)
	b.probeAt = now + Spread(b.pause, jitter)
}

// endCall notes the end of a call.
func (b *Breaker) endCall(now quota.Instant) {
	b.underWay--
	b.ended = now
}

// endSilence notes the end of a call with an answer.
func (b *Breaker) endSilence(now quota.Instant) {
	b.endCall(now)
	b.asking = 0
	if b.underWay > 0 {
		b.asking = now
	}
}
