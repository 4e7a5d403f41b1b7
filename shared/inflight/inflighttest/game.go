// Package inflighttest plays random games over nodes that claim permits of requests in flight from
// a control plane: messages are lost, repeated and late, nodes crash, forget and are cut off, and
// the control plane loses its state.
package inflighttest

import (
	"math/rand/v2"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// Control answers claims of one bucket, by the arithmetic or by code built on it.
type Control interface {
	// Claim answers a claim at now. It sets the Doubt of its answer itself.
	Claim(now quota.Instant, c inflight.Claim) inflight.Answer
	// Held is how many permits nodes hold at now, as far as it knows.
	Held(now quota.Instant) int64
	// Lose forgets all at now, and knows that it did. It returns the time after which it knows its
	// answers again, 0 if it cannot lose anything. remembers means that it does so without the
	// nodes' help.
	Lose(now quota.Instant) (doubt quota.Span, remembers bool)
}

// Bug is something done wrongly on purpose.
type Bug int

// The bugs: a node takes any answer for the answer to its last claim; a claim counts although a
// newer claim has come; the need is added at each copy of a claim; permits run from the answer; a
// node uses permits that it gives up until the answer; a control plane that has lost its state
// gives permits that it takes for free.
const (
	None Bug = iota
	AnyAnswer
	AnyOrder
	Adds
	Longer
	GivesUpLate
	Doubtless
	Bugs
)

// node is an Envoy that claims permits and has requests in flight.
type node struct {
	id      inflight.Node
	permits inflight.Permits
	open    int64
	// beyond is how many of the open requests were in flight when the permits ran out.
	beyond int64
	// heard is when its newest claim came, of that number.
	heard  quota.Instant
	newest uint64
	// apart means that the control plane has lost the node's permits and did not hear of them in
	// time. Until it has an answer, all its requests count as requests of a node that was cut off.
	apart bool
}

// message is a claim, or the answer to a claim, on its way.
type message struct {
	at     quota.Instant
	node   *node
	claim  inflight.Claim
	answer *inflight.Answer
}

// Game is one run of several nodes and a control plane.
type Game struct {
	// Now is the time at which it begins, and at which it is.
	Now quota.Instant
	// Steps is how many things happen.
	Steps int
	Bug   Bug

	r       *rand.Rand
	control Control
	nodes   []*node
	way     []message
	boots   uint64
	// limit is in force, most the largest that ever was.
	limit, most int64
	lost        quota.Instant
	// known is when the control plane knows its lost state again. asks means that nodes have
	// reported it; nodes that have not reported count as cut off.
	known quota.Instant
	asks  bool
	seqs  map[inflight.Node]uint64
	// Peak is the largest number of requests in flight, without requests of nodes that were cut
	// off.
	Peak int64
}

// Play plays the game of a seed against a control plane that knows of no node. It reports whether
// the bound was kept: no more in flight than the largest limit, but for requests of nodes whose
// permits ran out meanwhile; and all permits free at the end.
func (g *Game) Play(control Control, seed, n uint64) (kept, free bool) {
	g.r, g.control = rand.New(rand.NewPCG(seed, n)), control
	g.limit = 1 + g.r.Int64N(12)
	g.most, g.seqs = g.limit, map[inflight.Node]uint64{}
	for range 1 + g.r.IntN(4) {
		g.nodes = append(g.nodes, g.start())
	}
	for range g.Steps {
		g.step()
		g.Peak = max(g.Peak, g.inFlight())
		if g.Peak > g.most {
			return false, false
		}
	}
	g.Now += 4 * quota.Instant(inflight.TTL)
	return true, g.control.Held(g.Now) == 0
}

// Limit is the largest limit that was in force.
func (g *Game) Limit() int64 { return g.most }

// inFlight is how many requests count.
func (g *Game) inFlight() (open int64) {
	for _, n := range g.nodes {
		if !n.apart {
			open += n.open - n.beyond
		}
	}
	return open
}

func (g *Game) start() *node {
	g.boots++
	return &node{id: inflight.Node{ID: "envoy", Boot: g.boots}}
}

func (g *Game) span(most quota.Span) quota.Instant { return quota.Instant(g.r.Int64N(int64(most))) }

func (g *Game) claim(n *node) {
	before := n.permits.Count
	seq, hold, lent := n.permits.Claim(g.Now, n.open, g.r.Int64N(3))
	if g.Bug == GivesUpLate && g.Now < n.permits.Until {
		n.permits.Count = before
	}
	g.send(message{node: n, claim: inflight.Claim{
		Node: n.id, Seq: seq, Hold: hold, Lent: lent, Need: g.r.Int64N(4), Spare: g.r.Int64N(4),
		Limit: g.limit, Nodes: int64(len(g.nodes)),
	}})
}

// send puts a message on its way, which may lose it, double it, or take long.
func (g *Game) send(m message) {
	if g.r.IntN(8) == 0 {
		return
	}
	for range 1 + g.r.IntN(2)*g.r.IntN(2) {
		m.at = g.Now + g.span(50*quota.Millisecond)
		if g.r.IntN(10) == 0 {
			m.at += g.span(2 * inflight.TTL)
		}
		g.way = append(g.way, m)
	}
}

func (g *Game) deliver(m message) {
	if m.answer != nil {
		g.learn(m)
		return
	}
	c := m.claim
	c.Limit = g.limit // The control plane uses the figures in force, not the node's.
	if g.Bug == AnyOrder {
		c.Seq = max(c.Seq, g.seqs[c.Node]+1)
	}
	g.seqs[c.Node] = max(c.Seq, g.seqs[c.Node])
	if c.Node == m.node.id && c.Seq > m.node.newest {
		m.node.heard, m.node.newest = g.Now, c.Seq
	}
	a := g.control.Claim(g.Now, c)
	if g.Bug == Adds && g.r.IntN(4) == 0 && a.For > 0 {
		a.Permits++
	}
	g.send(message{node: m.node, claim: m.claim, answer: &a})
}

// learn gives a node an answer. Its requests count again once the control plane has counted them,
// if there is room for them.
func (g *Game) learn(m message) {
	n, seq := m.node, m.claim.Seq
	p := &n.permits
	if g.Bug == AnyAnswer {
		seq = p.Seq
	}
	counted := seq == p.Seq && p.Sent != 0 && m.answer.For > 0 && g.Now-p.Sent <= quota.Instant(quota.Second)
	if g.Bug == Longer && p.Sent != 0 {
		p.Sent = g.Now
	}
	p.Learn(g.Now, seq, *m.answer)
	doubt := g.lost > 0 && g.Now < g.lost+2*quota.Instant(inflight.TTL)
	if counted && n.apart && g.Now >= g.known {
		n.apart, n.beyond = false, n.open
	}
	if !counted || doubt && g.Bug != Doubtless {
		return
	}
	n.beyond = 0
	if g.control.Held(g.Now) > g.most {
		n.beyond = n.open
	}
}

func (g *Game) step() {
	g.Now += g.span(100 * quota.Millisecond)
	if g.r.IntN(100) == 0 {
		g.Now += g.span(inflight.TTL)
	}
	for _, n := range g.nodes {
		n.apart = n.apart || g.asks && g.Now >= g.known && n.heard <= g.lost
	}
	due := g.way
	g.way = nil
	for _, m := range due {
		if m.at <= g.Now {
			g.deliver(m)
		} else {
			g.way = append(g.way, m)
		}
	}
	for _, n := range g.nodes {
		if g.Now >= n.permits.Until {
			n.apart = false
			n.beyond = n.open
		}
	}
	g.happen(g.r.IntN(len(g.nodes)))
}

// happen begins or ends a request at a node, makes the node claim permits, or does something rare.
func (g *Game) happen(i int) {
	switch n := g.nodes[i]; g.r.IntN(8) {
	case 0, 1, 2:
		if n.permits.Room(g.Now, n.open) > 0 {
			n.open++
		}
	case 3, 4:
		if n.open > 0 {
			n.open--
			n.beyond = min(n.beyond, n.open)
		}
	case 5, 6:
		g.claim(n)
	case 7:
		g.happenRarely(i)
	}
}

func (g *Game) happenRarely(i int) {
	n := g.nodes[i]
	switch g.r.IntN(40) {
	case 0, 1: // It crashes, and its requests with it.
		g.nodes[i] = g.start()
	case 2, 3: // It forgets a bucket that it does not use.
		if n.open == 0 {
			n.permits = inflight.Permits{}
		}
	case 4: // A policy set with another limit.
		g.limit = 1 + g.r.Int64N(12)
		g.most = max(g.most, g.limit)
	case 5:
		if doubt, remembers := g.control.Lose(g.Now); doubt > 0 {
			g.lost, g.known, g.asks = g.Now, g.Now+quota.Instant(doubt), !remembers
		}
	}
}

// Arithmetic is the control plane that is the arithmetic alone.
type Arithmetic struct {
	// Doubtless means that it gives permits that it takes for free after a loss.
	Doubtless bool
	ledger    inflight.Ledger
	lost      quota.Instant
}

// Claim implements Control.
func (a *Arithmetic) Claim(now quota.Instant, c inflight.Claim) (answer inflight.Answer) {
	if !a.Doubtless && a.lost > 0 {
		c.Doubt = max(quota.Span(a.lost-now)+inflight.RenewedIn, 0)
	}
	a.ledger, answer = a.ledger.Claim(now, c)
	return answer
}

// Held implements Control.
func (a *Arithmetic) Held(now quota.Instant) int64 { return a.ledger.Held(now) }

// Lose implements Control.
func (a *Arithmetic) Lose(now quota.Instant) (doubt quota.Span, remembers bool) {
	a.ledger, a.lost = inflight.Ledger{}, now
	return inflight.RenewedIn, false
}
