package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// TTL is how long a node may admit requests by the permits that it holds, from the moment at
	// which it asked. A node renews them after a third of it. A crashed node costs its permits for
	// as long.
	TTL = 10 * quota.Second
	// MaxNodes bounds the nodes that hold permits of one bucket.
	MaxNodes = 10_000
)

// Ledger is what the control plane remembers of one bucket: which nodes hold how many permits. The
// zero value is a bucket whose permits are all free.
type Ledger struct{ Holdings []Holding }

// Node is a process of an Envoy: one that restarts is another.
type Node struct {
	ID   string
	Boot uint64
}

// Holding is a node's permits.
type Holding struct {
	Node Node
	// Seq is that of the node's last claim of the bucket.
	Seq     uint64
	Permits int64
	// Until is when others may have the permits, on the control plane's clock.
	Until quota.Instant
}

// Claim is what a node says about one bucket.
type Claim struct {
	Node Node
	// Seq grows with each of the node's claims of the bucket.
	Seq uint64
	// Hold is how many requests the node may have in flight until it has an answer, whatever the
	// answer: it counts even beyond the limit.
	Hold int64
	// Need and Spare are how many more permits it wants: for requests that wait, and for those to
	// come.
	Need, Spare int64
	// Limit is how many permits there are, Nodes how many nodes share them.
	Limit, Nodes int64
	// Doubt: nodes may hold permits that the ledger has lost. The node keeps what it holds, and
	// gets no more.
	Doubt bool
}

// Answer is what the control plane says to a claim.
type Answer struct {
	// For is how long the permits last, from when the node has sent its claim. 0: the control plane
	// has heard a newer claim of the node, or knows too many nodes, and the rest does not count.
	For quota.Span
	// Permits is up to how many requests in flight the node admits more. It is less than it holds
	// if the permits of a node that was cut off are with others: what it has in flight counts, and
	// no further request takes its place.
	Permits int64
	// Free is how many permits are with no node.
	Free int64
}

// Claim answers a claim at now. The caller stores the returned ledger. Holdings are absolute: a
// claim that is doubled changes nothing, and one that is overtaken by a newer one does not count.
func (l Ledger) Claim(now quota.Instant, c Claim) (Ledger, Answer) {
	next := Ledger{Holdings: make([]Holding, 0, len(l.Holdings)+1)}
	own, others := Holding{Node: c.Node}, int64(0)
	end := now + quota.Instant(TTL)
	for _, h := range l.Holdings {
		h.Until = min(h.Until, end) // The clock was set back.
		switch {
		case h.Until <= now:
		case h.Node == c.Node:
			own = h
		default:
			others += h.Permits
			next.Holdings = append(next.Holdings, h)
		}
	}
	switch {
	case c.Seq < own.Seq:
		next.Holdings = append(next.Holdings, own)
		return next, Answer{}
	case own.Seq == 0 && len(next.Holdings) >= MaxNodes:
		return next, Answer{}
	case c.Seq > own.Seq:
		own.Permits = max(c.granted(others), c.Hold)
	}
	own.Seq, own.Until = c.Seq, end
	next.Holdings = append(next.Holdings, own)
	free := c.Limit - others
	a := Answer{For: TTL, Permits: max(min(own.Permits, free), 0)}
	if !c.Doubt {
		a.Free = max(free-own.Permits, 0)
	}
	return next, a
}

// granted is how many permits the node gets: what it holds already, and what is free of what it
// needs. What it would like to have beside goes by halves of its even share, so that the
// last permits do not lie where they may not be needed.
func (c Claim) granted(others int64) int64 {
	free := c.Limit - others
	if c.Doubt {
		return min(c.Hold, free)
	}
	granted := min(c.Hold+c.Need, free)
	if left := free - granted; left > 0 {
		granted += min(c.Spare, left/(2*max(c.Nodes, 1)))
	}
	return granted
}

// Held is how many permits nodes hold at now.
func (l Ledger) Held(now quota.Instant) (permits int64) {
	for _, h := range l.Holdings {
		if h.Until > now {
			permits += h.Permits
		}
	}
	return permits
}
