package inflight_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

var games = flag.Int("games", 5_000, "how many random games are played")

// node is an Envoy that claims permits and has requests in flight.
type node struct {
	id      inflight.Node
	permits inflight.Permits
	open    int64
	// beyond is how many of the open requests were in flight when the permits ran out.
	beyond int64
}

// message is a claim, or the answer to one, on its way.
type message struct {
	at     quota.Instant
	node   *node
	claim  inflight.Claim
	answer *inflight.Answer
}

// bug is something done wrongly on purpose.
type bug int

const (
	noBug      bug = iota
	anyAnswer      // an answer counts whatever it answers
	anyOrder       // a claim counts although a newer one has
	adds           // what is needed is added at each copy of a claim
	longer         // permits run from the answer
	tellsFirst     // what is given up is used until the answer
	bugs
)

// game is one run of several nodes and a control plane.
type game struct {
	t      testing.TB
	r      *rand.Rand
	now    quota.Instant
	limit  int64
	nodes  []*node
	ledger inflight.Ledger
	way    []message
	ids    uint64
	bug    bug
	broken bool
}

func (g *game) start() *node {
	g.ids++
	return &node{id: inflight.Node{ID: "envoy", Boot: g.ids}}
}

func (g *game) claim(n *node) {
	keep, before := g.r.Int64N(3), n.permits.Count
	seq, hold := n.permits.Claim(g.now, n.open, keep)
	if g.bug == tellsFirst && g.now < n.permits.Until {
		n.permits.Count = before
	}
	c := inflight.Claim{
		Node: n.id, Seq: seq, Hold: hold, Need: g.r.Int64N(4), Spare: g.r.Int64N(4), Limit: g.limit, Nodes: int64(len(g.nodes)),
	}
	g.send(message{node: n, claim: c})
}

// send puts a message on its way, which may lose it, double it, or take long.
func (g *game) send(m message) {
	if g.r.IntN(8) == 0 {
		return
	}
	for range 1 + g.r.IntN(2)*g.r.IntN(2) {
		m.at = g.now + quota.Instant(g.r.Int64N(int64(50*quota.Millisecond)))
		if g.r.IntN(10) == 0 {
			m.at += quota.Instant(g.r.Int64N(int64(2 * inflight.TTL)))
		}
		g.way = append(g.way, m)
	}
}

func (g *game) deliver(m message) {
	if m.answer != nil {
		p := &m.node.permits
		seq := m.claim.Seq
		if g.bug == anyAnswer {
			seq = p.Seq
		}
		sent := p.Sent
		if g.bug == longer && sent != 0 {
			p.Sent = g.now
		}
		answered := seq == p.Seq && sent != 0 && m.answer.For > 0
		if p.Learn(seq, *m.answer); answered {
			m.node.beyond = 0 // The control plane has counted them.
			if g.ledger.Held(g.now) > g.limit {
				m.node.beyond = m.node.open
			}
		}
		return
	}
	c := m.claim
	if g.bug == anyOrder {
		c.Seq += 1 << 40
		for _, h := range g.ledger.Holdings {
			if h.Node == c.Node {
				c.Seq = h.Seq + 1
			}
		}
	}
	var a inflight.Answer
	g.ledger, a = g.ledger.Claim(g.now, c)
	if g.bug == adds && g.r.IntN(4) == 0 && a.For > 0 {
		a.Permits++
	}
	g.send(message{node: m.node, claim: m.claim, answer: &a})
}

func (g *game) step() {
	g.now += quota.Instant(g.r.Int64N(int64(100 * quota.Millisecond)))
	if g.r.IntN(100) == 0 {
		g.now += quota.Instant(g.r.Int64N(int64(inflight.TTL)))
	}
	rest := g.way[:0:0]
	due := g.way
	g.way = nil
	for _, m := range due {
		if m.at <= g.now {
			g.deliver(m)
		} else {
			rest = append(rest, m)
		}
	}
	g.way = append(g.way, rest...)
	for _, n := range g.nodes {
		if g.now >= n.permits.Until {
			n.beyond = n.open
		}
	}
	i := g.r.IntN(len(g.nodes))
	switch n := g.nodes[i]; g.r.IntN(8) {
	case 0, 1, 2:
		if n.permits.Room(g.now, n.open) > 0 {
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
		switch g.r.IntN(20) {
		case 0: // It crashes, and its requests with it.
			g.nodes[i] = g.start()
		case 1, 2: // It forgets a bucket that it does not use.
			if n.open == 0 {
				n.permits = inflight.Permits{}
			}
		}
	}
	g.check()
}

// check holds the bound: what is in flight is within the limit, but for requests of nodes whose
// permits ran out meanwhile.
func (g *game) check() {
	open, beyond := int64(0), int64(0)
	for _, n := range g.nodes {
		open += n.open
		beyond += n.beyond
	}
	g.broken = g.broken || open-beyond > g.limit
}

func play(t testing.TB, seed, n uint64, b bug) (broken bool) {
	g := &game{t: t, r: rand.New(rand.NewPCG(seed, n)), bug: b, now: quota.Instant(quota.Hour)}
	g.limit = 1 + g.r.Int64N(12)
	for range 1 + g.r.IntN(4) {
		g.nodes = append(g.nodes, g.start())
	}
	for range 150 {
		if g.step(); g.broken {
			return true
		}
	}
	// At rest nothing is held, and all can be had.
	for _, n := range g.nodes {
		n.open = 0
	}
	g.now += 4 * quota.Instant(inflight.TTL)
	if held := g.ledger.Held(g.now); held != 0 {
		t.Errorf("game %d: %d permits are held at rest", n, held)
	}
	return false
}

// Over nodes that claim permits by messages that are lost, doubled and late, and that crash, no
// more requests are in flight than the limit says, but for those of nodes that were cut off for
// longer than a lease.
func TestPermitsOverNodes(t *testing.T) {
	seed := rand.Uint64()
	for i := range *games {
		if play(t, seed, uint64(i), noBug) {
			t.Fatalf("seed %d: game %d breaks the bound", seed, i)
		}
	}
}

// Bugs that would break the bound are found.
func TestPlantedBugsAreFound(t *testing.T) {
	for b := noBug + 1; b < bugs; b++ {
		found := false
		for i := uint64(0); i < 20_000 && !found; i++ {
			found = play(t, 7, i, b)
		}
		if !found {
			t.Errorf("bug %d is not found", b)
		}
	}
}
