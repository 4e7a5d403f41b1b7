package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// TTL is how long a node may use its permits, from when it sent the claim. A node renews them
	// after a third of this time. The permits of a crashed node are lost for this time.
	TTL = 10 * quota.Second
	// RenewedIn is the time within which each node has renewed its permits, even if a claim or two
	// are lost, unless the node is cut off.
	RenewedIn = TTL * 2 / 5
	// wantFor is how long the ledger remembers that a node needs more permits than it got.
	// mostShort bounds the number of such nodes that count: the nodes that asked last.
	wantFor   = quota.Second
	mostShort = 32
	// MaxNodes bounds the nodes that hold permits of one bucket.
	MaxNodes = 10_000
)

// Ledger is the control plane's record of one bucket: how many permits each node holds, in the
// order of their last claims. In the zero value all permits are free.
type Ledger struct{ Holdings []Holding }

// Node is a process of an Envoy. An Envoy that restarts is a new node.
type Node struct {
	ID   string
	Boot uint64
}

// Holding is a node's permits.
type Holding struct {
	Node Node
	// Seq is the sequence number of the node's last claim of the bucket.
	Seq uint64
	// Permits is the number of permits that no other node may have. Ceiling is the number of
	// requests in flight up to which the node admits more; it is less than Permits if the node has
	// more in flight than its share. Want is how many permits were missing from its last answer.
	Permits, Ceiling, Want int64
	// Until is when other nodes may have the permits, on the control plane's clock.
	Until quota.Instant
}

// Claim is a node's report about one bucket.
type Claim struct {
	Node Node
	// Seq is a sequence number that grows with each claim of the node for the bucket.
	Seq uint64
	// Hold is the most requests that the node may have in flight until it has an answer, whatever
	// the answer is. It counts even beyond the limit.
	Hold int64
	// Lent is the number of its permits that last until it has the answer. It is less than Hold for
	// a node that was cut off while requests were in flight.
	Lent int64
	// Need and Spare are the numbers of further permits that it wants: Need for requests that wait,
	// Spare for future requests.
	Need, Spare int64
	// Limit is the number of permits, Nodes the number of nodes that share them.
	Limit, Nodes int64
	// Doubt is how much longer nodes may hold permits that the ledger has lost; 0 if it has lost
	// none. Meanwhile the node keeps its lent permits and gets no more.
	Doubt quota.Span
}

// Answer is the control plane's answer to a claim.
type Answer struct {
	// For is how long the permits last, from when the node sent its claim. 0 means that the control
	// plane has a newer claim of the node, or knows MaxNodes nodes already; then the other fields
	// do not count.
	For quota.Span
	// Permits is the number of requests in flight up to which the node admits more. It is less than
	// the number that the node holds if the node was cut off and other nodes have its permits. Its
	// requests in flight still count, and no further request takes their place.
	Permits int64
	// Free is the number of permits that no node has. Doubt is how much longer this number is
	// unknown; 0 if it is known. During the doubt no node gets more permits than it has.
	Free  int64
	Doubt quota.Span
}

// Claim answers a claim at now. The caller stores the returned ledger. A claim states totals, so a
// repeated claim changes nothing. A claim that arrives after a newer one is ignored.
func (l Ledger) Claim(now quota.Instant, c Claim) (Ledger, Answer) {
	next := Ledger{Holdings: make([]Holding, 0, len(l.Holdings)+1)}
	own, others := Holding{Node: c.Node}, int64(0)
	end := now + quota.Instant(TTL)
	since := end - quota.Instant(wantFor)
	// Sum the permits of the other nodes, and drop holdings that have ended.
	for _, h := range l.Holdings {
		if h.Until > end { // The clock was set back.
			h.Until, h.Want = end, 0
		}
		if h.Until <= since {
			h.Want = 0
		}
		switch {
		case h.Until <= now:
		case h.Node == c.Node:
			own = h
		default:
			others += h.Permits
			next.Holdings = append(next.Holdings, h)
		}
	}
	// Update the node's own holding, unless the claim is old or the ledger is full.
	switch {
	case c.Seq < own.Seq:
		next.Holdings = append(next.Holdings, own)
		return next, Answer{}
	case own.Seq == 0 && len(next.Holdings) >= MaxNodes:
		return next, Answer{}
	case c.Seq > own.Seq:
		own.Ceiling = c.nodeCeiling(others, next.Holdings)
		own.Permits = max(own.Ceiling, c.Hold)
		own.Want = max(min(c.Hold+c.Need-own.Ceiling, c.Need), 0)
	}
	own.Seq, own.Until = c.Seq, end
	next.Holdings = append(next.Holdings, own)
	free := c.Limit - others
	a := Answer{For: TTL, Permits: max(min(own.Ceiling, free), 0), Doubt: c.Doubt}
	if c.Doubt == 0 {
		a.Free = max(free-own.Permits, 0)
	}
	return next, a
}

// nodeCeiling returns the number of requests in flight up to which the node admits more.
func (c Claim) nodeCeiling(others int64, holdings []Holding) int64 {
	if c.Doubt > 0 {
		return c.Lent
	}
	return permitsToKeep(max(c.grantedPermits(others), 0), holdings)
}

// grantedPermits returns how many permits the node gets: the permits that it holds, and free ones
// for its need. Of its spare permits it gets at most half of an even share of the rest, so that the
// last permits do not go to nodes that may not need them.
func (c Claim) grantedPermits(others int64) int64 {
	free := c.Limit - others
	granted := min(c.Hold+c.Need, free)
	if left := free - granted; left > 0 {
		granted += min(c.Spare, left/(2*max(c.Nodes, 1)))
	}
	return granted
}

// permitsToKeep returns how many of its permits a node keeps. It gives the other nodes the permits
// that they lack, until all nodes have equally many. Otherwise a node that is always busy would
// keep its permits for ever.
func permitsToKeep(granted int64, others []Holding) int64 {
	nodes, permits, want := int64(0), int64(0), int64(0)
	for i := len(others) - 1; i >= 0 && nodes < mostShort; i-- {
		if h := &others[i]; h.Want > 0 {
			nodes, permits, want = nodes+1, permits+h.Permits, want+h.Want
		}
	}
	even := (granted + permits + nodes) / (nodes + 1)
	return max(granted-want, min(granted, even))
}

// Forgettable reports whether no node holds permits at now.
func (l Ledger) Forgettable(now quota.Instant) bool {
	for _, h := range l.Holdings {
		if h.Until > now {
			return false
		}
	}
	return true
}

// Held returns how many permits nodes hold at now.
func (l Ledger) Held(now quota.Instant) (permits int64) {
	for _, h := range l.Holdings {
		if h.Until > now {
			permits += h.Permits
		}
	}
	return permits
}
