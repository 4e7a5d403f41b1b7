package rpc

import "github.com/weir-proxy/weir/shared/quota"

// Client posts messages to the control plane.
type Client interface {
	// Call sends a message to a path. Done is called once, later, unless Call returns an error.
	// Status 0 means that no answer came. The answer is valid only during done.
	Call(path string, message []byte, timeout quota.Span, done func(status int, answer []byte)) error
}

// Clock returns the time at which an answer is handled, the same in all VMs of the process.
type Clock interface{ Now() quota.Instant }

// Rand is a xorshift generator. It spreads calls in time and decides nothing about limits.
type Rand uint64

// NewRand returns a generator with a seed.
func NewRand(seed uint64) Rand { return Rand(seed | 1) }

// Next returns the next number.
func (r *Rand) Next() uint64 {
	*r ^= *r << 13
	*r ^= *r >> 7
	*r ^= *r << 17
	return uint64(*r)
}

// Jitter returns a number in [0, MaxJitter).
func (r *Rand) Jitter() int64 { return int64(r.Next() % MaxJitter) }

// MaxJitter is above every jitter.
const MaxJitter = 1024

// Backoff defines the waits between attempts: First after the first failure, twice the last wait
// after each further failure, at most Longest.
type Backoff struct{ First, Longest quota.Span }

// After returns the pause after a pause of last; last is 0 before the first pause.
func (b Backoff) After(last quota.Span) quota.Span { return min(max(2*last, b.First), b.Longest) }

// Spread returns at least half of a pause, and more by the jitter.
func Spread(pause quota.Span, jitter int64) quota.Instant {
	return quota.Instant(pause/2 + pause*quota.Span(jitter)/(2*MaxJitter))
}
