// Package rpc has the filter's calls to the control plane: their outcomes, when to try again, and
// when not to try.
package rpc

// Outcome is the outcome of a call.
type Outcome uint8

// NoAnswer includes Envoy's 504 for a late peer. Refused is a status of 4xx. Unavailable is another
// status of 5xx: a store that is away, or Envoy's own 503 for a peer that it cannot connect to.
// Unreadable is an answer that cannot be read. Unsent: Envoy refused the call at once, because its
// cluster has no healthy host. Overloaded is 429: the control plane has no capacity for more calls.
const (
	Answered Outcome = iota
	NoAnswer
	Refused
	Unavailable
	Unreadable
	Unsent
	Overloaded
	Outcomes
)

// Counts counts outcomes.
type Counts [Outcomes]uint64

// OutcomeOf returns the outcome of a status; status 0 is no answer.
func OutcomeOf(status int) Outcome {
	switch {
	case status == 0, status == 504:
		return NoAnswer
	case status == 200, status == 204:
		return Answered
	case status == 429:
		return Overloaded
	case status >= 500:
		return Unavailable
	case status >= 400:
		return Refused
	}
	return Unreadable
}

// String returns the outcome's text for logs.
func (o Outcome) String() string {
	return [...]string{
		"it answers", "no answer in time", "it refuses the call: check the node token and both versions",
		"it is unavailable",
		"its answer cannot be read", "its cluster has no healthy host", "it is overloaded",
	}[o]
}
