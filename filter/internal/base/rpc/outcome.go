// Package rpc is how the filter calls the control plane: how calls end, when to try again, and when
// not to try.
package rpc

// Outcome is how a call ended.
type Outcome uint8

// NoAnswer is a timeout too: Envoy answers 504 in place of a peer that is late. Refused is a status
// of 4xx, Unavailable another of 5xx: a store that is away, or Envoy's own 503 for a peer that
// cannot be connected to. Unreadable is an answer that makes no sense. Unsent calls were refused by
// Envoy at once: their cluster has no healthy host. Overloaded is 429: it works on as much as it
// can.
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

// Of is the outcome that a status stands for; 0 is no answer.
func Of(status int) Outcome {
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

// String says it in a log.
func (o Outcome) String() string {
	return [...]string{
		"it answers", "no answer in time", "it refuses the call: check the node token and both versions",
		"it is unavailable",
		"its answer cannot be read", "its cluster has no healthy host", "it is overloaded",
	}[o]
}
