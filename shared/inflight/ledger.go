package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// TTL is how long a node may admit requests by the permits that it holds, from the moment at
	// which it asked. A node renews them after a third of it. A crashed node costs its permits for
	// as long.
	TTL = 10 * quota.Second
	// RenewedIn is within how long each node has claimed again what it holds, also if a claim or
	// two are lost, unless it is cut off.
	RenewedIn = TTL * 2 / 5
	// wantFor is how long it counts that a node needs more permits than it got, and mostShort
	// bounds the nodes of which it does: those that asked last.
	wantFor   = quota.Second
	mostShort = 32
	// MaxNodes bounds the nodes that hold permits of one bucket.
	MaxNodes = 10_000
)

// Ledger is what the control plane remembers of one bucket: which nodes hold how many permits, that
// of the last claim last. The zero value is a bucket whose permits are all free.
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
	Seq uint64
	// Permits are those that no other node may have. Ceiling is up to how many requests the node
	// admits more, which is less if more are in flight than it is to have. Want is how many more it
	// needed than it got.
	Permits, Ceiling, Want int64
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
	// Lent is how many permits it has that last until it has the answer. It is less than Hold for a
	// node that was cut off, with requests in flight.
	Lent int64
	// Need and Spare are how many more permits it wants: for requests that wait, and for those to
	// come.
	Need, Spare int64
	// Limit is how many permits there are, Nodes how many nodes share them.
	Limit, Nodes int64
	// Doubt is for how long yet nodes may hold permits that the ledger has lost; 0 is a ledger that
	// has lost none. Meanwhile the node keeps what is lent to it, and gets no more.
	Doubt quota.Span
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
	// Free is how many permits are with no node. Doubt is for how long yet that is not known, and
	// no node gets more than it has; 0 if it is.
	Free  int64
	Doubt quota.Span
}

// Claim answers a claim at now. The caller stores the returned ledger. Holdings are absolute: a
// claim that is doubled changes nothing, and one that is overtaken by a newer one does not count.
func (l Ledger) Claim(now quota.Instant, c Claim) (Ledger, Answer) {
	next := Ledger{Holdings: make([]Holding, 0, len(l.Holdings)+1)}
	own, others := Holding{Node: c.Node}, int64(0)
	end := now + quota.Instant(TTL)
	since := end - quota.Instant(wantFor)
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
	switch {
	case c.Seq < own.Seq:
		next.Holdings = append(next.Holdings, own)
		return next, Answer{}
	case own.Seq == 0 && len(next.Holdings) >= MaxNodes:
		return next, Answer{}
	case c.Seq > own.Seq:
		own.Ceiling = c.ceiling(others, next.Holdings)
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

// ceiling is up to how many requests in flight the node admits more.
func (c Claim) ceiling(others int64, holdings []Holding) int64 {
	if c.Doubt > 0 {
		return c.Lent
	}
	return leave(max(c.granted(others), 0), holdings)
}

// granted is how many permits the node gets: what it holds already, and what is free of what it
// needs. What it would like to have beside goes by halves of its even share, so that the
// last permits do not lie where they may not be needed.
func (c Claim) granted(others int64) int64 {
	free := c.Limit - others
	granted := min(c.Hold+c.Need, free)
	if left := free - granted; left > 0 {
		granted += min(c.Spare, left/(2*max(c.Nodes, 1)))
	}
	return granted
}

// leave returns what a node keeps of its permits: it leaves to others what they lack, but not more
// than makes all of them even. Without that, a node that is always busy would keep its permits for
// ever.
func leave(granted int64, others []Holding) int64 {
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

// Held is how many permits nodes hold at now.
func (l Ledger) Held(now quota.Instant) (permits int64) {
	for _, h := range l.Holdings {
		if h.Until > now {
			permits += h.Permits
		}
	}
	return permits
}
