package metrics

// Bound is one of the control plane's bounds on its own callers.
type Bound string

// The bounds: requests with one token; requests without a valid token from one address; requests of
// nodes at one address, and their turns at the store; turns and connections of people; and nodes
// that are not known.
const (
	BoundToken    Bound = "token"
	BoundAddress  Bound = "address"
	BoundNode     Bound = "node"
	BoundTurns    Bound = "turns"
	BoundReaders  Bound = "readers"
	BoundNewNodes Bound = "new_nodes"
)

// Throttled counts a request that a bound has stopped, or a node that was not recorded.
func (m *Metrics) Throttled(by Bound) { m.throttled.WithLabelValues(string(by)).Inc() }

// AuthFailed is the reason why a token was refused.
type AuthFailed string

// The reasons.
const (
	AuthUnknown AuthFailed = "unknown"
	AuthExpired AuthFailed = "expired"
)

// AuthFailure counts a request without a valid token.
func (m *Metrics) AuthFailure(why AuthFailed) { m.authFailures.WithLabelValues(string(why)).Inc() }
