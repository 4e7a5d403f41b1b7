// Package breaker stops requests to a server that does not answer, so that they fail at once and do
// not accumulate.
package breaker

import "time"

// State says which requests a breaker allows. The zero value is Closed.
type State uint8

// Closed allows all requests, Open allows none, and HalfOpen allows one trial at a time. The metric
// uses the same numbers.
const (
	Closed State = iota
	HalfOpen
	Open
)

// String returns the name of the state in logs and metrics.
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
	// Tolerated is the number of failures in a row that opens a breaker.
	Tolerated = 5
	// Rest is the mean time for which an open breaker allows no request. Each rest is up to a
	// quarter longer or shorter, so that replicas do not all try at the same time.
	Rest = 250 * time.Millisecond
	// trialTime is how long a trial may take before the next one is allowed, because its caller may
	// have left without a report.
	trialTime = Rest
)

// Breaker decides whether requests to one server are allowed. It reads no clock and no random
// numbers. The zero value is closed.
type Breaker struct {
	state    State
	failures int // failures in a row while closed
	// until is the end of the rest or of the trial.
	until time.Time
}

// State returns the state after the last call.
func (b *Breaker) State() State { return b.state }

// Allow reports whether a request is allowed at now. If the breaker is not closed, the request is a
// trial, and the caller must report its result.
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

// Report counts the result of an allowed request at now; ok means that it got an answer. An answer
// closes the breaker. Failures of requests that were under way when the breaker opened have no
// effect. luck, from 0 to 1, sets the length of a rest that begins.
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
