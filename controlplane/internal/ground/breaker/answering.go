package breaker

import "time"

// settledAfter is how long a store must have answered without a break before it overrules a node
// that has a later revision: another replica may just have sent the node a revision that this one
// has not read yet.
const settledAfter = 5 * time.Second

// Answering records since when a store has answered without a break. The zero value is a store that
// does not answer.
type Answering struct{ since time.Time }

// Note records the result of a request to the store.
func (a *Answering) Note(err error, now time.Time) {
	switch {
	case err != nil:
		a.since = time.Time{}
	case a.since.IsZero() || now.Before(a.since): // The clock was set back.
		a.since = now
	}
}

// Settled reports whether the store has answered for long enough to overrule a node.
func (a *Answering) Settled(now time.Time) bool {
	return !a.since.IsZero() && now.Sub(a.since) >= settledAfter
}
