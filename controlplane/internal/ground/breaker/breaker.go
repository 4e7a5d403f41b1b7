// Package breaker keeps requests from a server that does not answer, so that they fail at once and
// do not pile up.
package breaker

import "time"

// State says which requests a breaker allows. The zero value is Closed.
type State uint8

// Closed allows all requests, Open none, HalfOpen one trial at a time. The numbers are those of the
// metric.
const (
	Closed State = iota
	HalfOpen
	Open
)

// String is the state's name in logs and metrics.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	}
	return "open"
}

const (
	// Tolerated failures in a row open a breaker.
	Tolerated = 5
	// Rest is the mean time for which an open breaker allows no request; each rest is up to a
	// quarter longer or shorter, so that many replicas do not try together.
	Rest = 250 * time.Millisecond
	// trialTime is how long a trial may take before another one is allowed, because its caller may
	// have left without a report.
	trialTime = Rest
)

// Breaker decides about one server that may not answer. It reads no clock and no random numbers.
// The zero value is closed.
type Breaker struct {
	state    State
	failures int // in a row, while closed
	// until the rest ends, or the trial.
	until time.Time
}

// State is the state as of the last call.
func (b *Breaker) State() State { return b.state }

// Allow reports whether a request is allowed at now. If the breaker is not closed, the request is
// the trial, and the caller must report its end.
func (b *Breaker) Allow(now time.Time) bool {
	if b.state == Closed {
		return true
	}
	if now.Before(b.until) {
		return false
	}
	b.state, b.until = HalfOpen, now.Add(trialTime)
	return true
}

// Report counts how a request that was allowed ended at now. Luck, from 0 to 1, sets the length of
// a rest that begins. Any answer closes the breaker; failures of requests that were under way when
// it opened change nothing.
func (b *Breaker) Report(now time.Time, ok bool, luck float64) {
	switch {
	case ok:
		*b = Breaker{}
		return
	case b.state == Open:
		return
	case b.state == Closed:
		b.failures++
		if b.failures < Tolerated {
			return
		}
	}
	*b = Breaker{state: Open, until: now.Add(Rest*3/4 + time.Duration(luck*float64(Rest)/2))}
}
