package rlqs_test

import (
	"math"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rlqs"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const reportEvery = 5 * quota.Second

var theBucket = rlqs.ID{Domain: "d", Entries: map[string]string{"a": "b"}, Name: "a=b"}

// node is an Envoy with the quota filter. Its clock runs at a speed of its own.
type node struct {
	game *game
	// speed is how many microseconds of its own pass in a million.
	speed float64
	// rate is the requests a second that it gets.
	rate  float64
	alive bool
	// stream is the connection to a control plane, nil without a connection.
	stream *stream
	// silent: it reports no more.
	silent bool
	// made: the filter knows the bucket. tokens are the tokens left of an assignment.
	made     bool
	assigned bool
	tokens   float64
	bucket   assign.Bucket
	counted  quota.Instant
	expires  quota.Instant
	// requests counts the requests since the last report.
	requests int64
	// epoch differs between the Envoy and its replacement.
	epoch int
	// hoards: it has few requests, claims many, and uses its tokens at the last moment.
	hoards bool
}

type stream struct {
	node   *node
	plane  *plane
	filter uint64
	open   bool
	// arrived is when the last message arrives: they come in order.
	arrived quota.Instant
}

// local is how long a span of the node's own clock takes.
func (n *node) local(span quota.Span) quota.Span {
	return quota.Span(float64(span) * 1e6 / n.speed)
}

func (n *node) connect() {
	alive := make([]*plane, 0, len(n.game.planes))
	for _, p := range n.game.planes {
		if p.alive {
			alive = append(alive, p)
		}
	}
	if len(alive) == 0 {
		return
	}
	p := alive[n.game.rng.IntN(len(alive))]
	n.stream = &stream{node: n, plane: p, open: true}
	n.stream.filter = p.engine.Join(n.stream)
}

// cut ends the stream: the control plane notices, the filter connects when it reports next.
func (s *stream) cut() {
	s.open = false
	if s.node.stream == s {
		s.node.stream = nil
	}
	s.plane.engine.Leave(s.filter)
	s.plane.plan()
}

// Offer implements rlqs.Outlet: the actions are on their way for a while.
func (s *stream) Offer(actions []rlqs.Action) {
	g := s.node.game
	sent := g.now + quota.Instant(s.plane.took)
	for _, a := range actions {
		if sent > a.By && g.plant != sentLate {
			continue
		}
		transit := g.within(quota.Millisecond)
		if !g.calm && g.rng.IntN(10) == 0 {
			transit = g.within(assign.Late / 2)
		}
		s.arrived = max(s.arrived, sent+quota.Instant(transit))
		epoch := s.node.epoch
		g.after(quota.Span(s.arrived-g.now), func() {
			if s.open && s.node.epoch == epoch {
				s.node.receive(a)
			}
		})
	}
}

func (n *node) receive(a rlqs.Action) {
	g := n.game
	left := 0.0
	if g.plant == carriedOver && n.assigned {
		n.earn()
		left = n.tokens
	}
	n.assigned, n.tokens = false, 0
	switch a.Kind {
	case rlqs.Abandon:
		n.made = false
	case rlqs.Assign:
		n.assigned, n.bucket, n.counted = true, a.Bucket, g.now
		n.tokens = float64(a.Bucket.Max) + left
		n.expires = g.now + quota.Instant(n.local(a.TTL))
		if g.plant == endless {
			n.expires = quota.Forever
		}
		if g.plant == quick {
			n.bucket.Interval = quota.Second
		}
		if n.hoards && g.rng.IntN(3) == 0 {
			g.after(n.local(a.TTL)-1, n.spree)
		}
	}
}

// spree uses all tokens of the node at once, and all other tokens of the limit.
func (n *node) spree() {
	g := n.game
	if g.plant == endless {
		g.after(g.within(20*quota.Second), n.spree)
	}
	for n.assigned && n.tokens >= 1 && g.now < n.expires {
		n.request()
	}
	if g.rng.IntN(2) == 0 {
		ask := lease.Ask{Params: g.params, Waiting: g.params.Burst, Cost: 1, Deadline: lease.Deadline, Nodes: 1}
		var grant lease.Grant
		g.ledger, grant = g.ledger.Grant(g.now, ask)
		g.others += grant.Waiting
		for range grant.Waiting {
			g.admit()
		}
	}
}

func (n *node) earn() {
	passed := float64(n.game.now-n.counted) * n.speed / 1e6
	n.counted = n.game.now
	most := math.Max(float64(n.bucket.Max), n.tokens)
	n.tokens = math.Min(most, n.tokens+passed*float64(n.bucket.PerFill)/float64(n.bucket.Interval))
}

// request is one of a caller.
func (n *node) request() {
	g := n.game
	g.offered++
	n.requests++
	if !n.made {
		n.made = true
		if n.stream == nil {
			n.connect()
		}
		n.report()
		return
	}
	if !n.assigned || g.now >= n.expires {
		n.assigned = false
		return
	}
	n.earn()
	if n.tokens >= 1 {
		n.tokens--
		g.admit()
	}
}

// report sends the counts; the report may be late, doubled, or lost with the stream.
func (n *node) report() {
	if n.stream == nil || !n.made {
		return
	}
	g, s, count := n.game, n.stream, n.requests
	n.requests = 0
	if n.hoards {
		count = g.rng.Int64N(4 * g.params.Burst)
	}
	times, late := 1, g.within(quota.Millisecond)
	if !g.calm {
		times = []int{1, 1, 1, 1, 0, 2}[g.rng.IntN(6)]
		if g.rng.IntN(5) == 0 {
			late = g.within(3 * quota.Second)
		}
	}
	for range times {
		g.after(late, func() {
			if s.open && s.plane.alive {
				s.plane.engine.Report(g.now, s.filter, theBucket, count)
				s.plane.plan()
			}
		})
	}
}

// tick reports every 5 s, on a new stream if the last one has ended.
func (n *node) tick() {
	if !n.alive {
		return
	}
	if !n.silent && n.made {
		if n.stream == nil {
			n.connect()
		}
		n.report()
	}
	n.game.after(n.local(reportEvery), n.tick)
}

// load sends requests: in bursts, or evenly.
func (n *node) load() {
	if !n.alive {
		return
	}
	g := n.game
	pause := quota.Span(g.rng.ExpFloat64() * 1e6 / n.rate)
	if !g.calm && g.rng.IntN(200) == 0 {
		pause += g.within(40 * quota.Second)
		n.rate = g.someRate()
	}
	n.request()
	g.after(pause, n.load)
}

// crash replaces the Envoy by a new Envoy.
func (n *node) crash() {
	n.epoch++
	if n.stream != nil {
		n.stream.cut()
	}
	n.made, n.assigned, n.tokens, n.requests = false, false, 0, 0
}

// strict is another door to the limit, which asks for each request and uses the token within
// lease.Deadline.
func (g *game) strict(rate float64) {
	g.offered++
	var grant lease.Grant
	ask := lease.Ask{Params: g.params, Waiting: 1, Cost: 1, Deadline: lease.Deadline, Nodes: 1}
	g.ledger, grant = g.ledger.Grant(g.now, ask)
	if grant.Waiting > 0 {
		g.others++
		g.after(g.within(lease.Deadline-quota.Millisecond), g.admit)
	}
	g.after(quota.Span(g.rng.ExpFloat64()*1e6/rate), func() { g.strict(rate) })
}

func (g *game) someRate() float64 {
	limit := float64(g.params.Num) / float64(g.params.Den) * 1e6
	return math.Min(math.Max(limit*math.Exp(4*g.rng.Float64()-2), 0.02), 300)
}
