package rlqs_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/controlplane/internal/serve/rlqs"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// A game is control planes on one store, Envoys with quota filters, and callers, in virtual time. A
// seed decides everything. The law is checked at each admission.

// plant is a bug for the game to find.
type plant uint8

const (
	none plant = iota
	// shortLease has tokens count as leased for half as long.
	shortLease
	// countedAtOnce has tokens count as used when they are granted.
	countedAtOnce
	// doubled gives each round twice the granted tokens.
	doubled
	// carriedOver: the filter keeps its unused tokens when it gets a new assignment.
	carriedOver
	// endless: assignments never expire in the filter.
	endless
	// quick has assigned buckets earn their tokens every second.
	quick
	// sentLate: the control plane sends assignments for which the store took too long.
	sentLate
	plants
)

func (p plant) String() string {
	return [...]string{"none", "a short lease", "counted at once", "doubled", "carried over",
		"endless", "quick", "sent late"}[p]
}

type game struct {
	rng    *rand.Rand
	plant  plant
	now    quota.Instant
	queue  vtimetest.Queue[quota.Instant]
	params quota.Params
	ledger lease.Ledger
	nodes  []*node
	planes []*plane
	law    *law
	// calm games have no faults.
	calm bool
	// offered and admitted are requests.
	offered, admitted, others int64
	broken                    error
}

// law is the reference: a bucket in plain numbers that may never be overdrawn. It counts in
// microseconds of the rate, so it is exact.
type law struct {
	num, den, burst, debt int64
	last                  quota.Instant
}

func (l *law) admit(at quota.Instant) error {
	l.debt = max(0, l.debt-int64(at-l.last)*l.num)
	l.last = at
	l.debt += l.den
	if l.debt > l.burst*l.den {
		return fmt.Errorf("at %d µs the debt is %d units, of at most %d", at, l.debt, l.burst*l.den)
	}
	return nil
}

func (g *game) after(span quota.Span, do func()) {
	g.queue.Add(g.now+quota.Instant(max(span, 0)), do)
}

// within is a random span up to most.
func (g *game) within(most quota.Span) quota.Span { return quota.Span(g.rng.Int64N(int64(most) + 1)) }

func (g *game) run(until quota.Instant) error {
	for g.broken == nil {
		next, ok := g.queue.Next(until)
		if !ok {
			break
		}
		g.now = next.At
		next.Fire()
	}
	return g.broken
}

func (g *game) admit() {
	g.admitted++
	if err := g.law.admit(g.now); err != nil {
		g.broken = err
	}
}

// plane is one control plane.
type plane struct {
	game   *game
	engine *rlqs.Engine
	alive  bool
	// took is how long the store took in the turn that goes on.
	took quota.Span
	// turning is when the next turn is; 0 for none. It comes after the last one has ended.
	turning, ended quota.Instant
}

func (g *game) startPlane() *plane {
	p := &plane{game: g, alive: true}
	p.engine = rlqs.NewEngine(p, rlqs.Room{All: 1000, Each: 1000}, func() int64 { return g.rng.Int64N(1024) })
	return p
}

// plan sees to it that the plane has its turn when something is due.
func (p *plane) plan() {
	due := p.engine.Due()
	if !p.alive || due == quota.Forever || p.turning != 0 && p.turning <= due {
		return
	}
	at := max(due, p.game.now, p.ended)
	p.turning = at
	p.game.after(quota.Span(at-p.game.now), func() {
		if p.turning != at || !p.alive {
			return
		}
		p.turning = 0
		p.turn()
		p.plan()
	})
}

func (p *plane) turn() {
	g := p.game
	p.took = 0
	asked := true
	p.engine.Turn(context.Background(), func() quota.Instant {
		if asked {
			asked = false
			return g.now
		}
		return g.now + quota.Instant(p.took)
	})
	p.ended = g.now + quota.Instant(p.took)
}

// Stand implements rlqs.Source.
func (p *plane) Stand(context.Context, rlqs.ID) rlqs.Standing {
	f := assign.Figures{}.With(p.game.params, 1, p.game.params.Burst)
	return rlqs.Standing{Verdict: rlqs.Limited, Figures: f}
}

// Take implements rlqs.Source: the ledger decides at once, and the answer takes a while.
func (p *plane) Take(_ context.Context, asks []rlqs.Ask) {
	g := p.game
	p.took = g.within(2 * quota.Millisecond)
	if !g.calm && g.rng.IntN(8) == 0 {
		p.took = g.within(12 * assign.Late)
	}
	for i := range asks {
		ask := lease.Ask{Params: g.params, Waiting: asks[i].Want, Cost: 1, Deadline: asks[i].Lease, Nodes: 1}
		switch g.plant {
		case shortLease:
			ask.Deadline /= 4
		case countedAtOnce:
			ask.Deadline = 0
		}
		var grant lease.Grant
		g.ledger, grant = g.ledger.Grant(g.now, ask)
		asks[i].Granted, asks[i].Level = grant.Waiting, grant.Level
		if g.plant == doubled {
			asks[i].Granted *= 2
		}
		asks[i].Failed = !g.calm && g.rng.IntN(50) == 0 // The answer was lost.
	}
}
