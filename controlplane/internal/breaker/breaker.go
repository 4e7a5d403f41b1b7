// Package breaker leaves alone what does not answer, so that requests fail at once instead of piling up before it.
package breaker

import "time"

// State is what a breaker lets through. The zero value is Closed.
type State uint8

// Closed lets everything through, Open nothing, HalfOpen one trial at a time. The numbers are those of the metric.
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
	// Rest is the middle of how long an open breaker lets nothing through; each rest is up to a quarter longer or shorter, so that
	// many replicas do not try together.
	Rest = 250 * time.Millisecond
	// trialTime is how long a trial may take before another may be made: its caller may have gone away without a word.
	trialTime = Rest
)

// Breaker decides about one thing that may not answer. It reads no clock and draws no lots. The zero value is closed.
type Breaker struct {
	state    State
	failures int // in a row, while closed
	// until the rest ends, or the trial.
	until time.Time
}

// State is the state as of the last call.
func (b *Breaker) State() State { return b.state }

// Allow says whether a request may go through at now. Of a breaker that is not closed it is the trial, whose end is to be
// reported.
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

// Report counts how a request that was allowed ended at now. Luck, from 0 to 1, sets the length of a rest that begins. An answer
// closes the breaker whoever got it; failures of requests that were under way when it opened change nothing.
func (b *Breaker) Report(now time.Time, ok bool, luck float64) {
	switch {
	case ok:
		*b = Breaker{}
		return
	case b.state == Open:
		return
	case b.state == Closed:
		if b.failures++; b.failures < Tolerated {
			return
		}
	}
	*b = Breaker{state: Open, until: now.Add(Rest*3/4 + time.Duration(luck*float64(Rest)/2))}
}
