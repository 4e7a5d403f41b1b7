package lease_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// optimisticGame is a centre and nodes with a network between them that delays, loses and doubles.
type optimisticGame struct {
	p      quota.Params
	slack  int64
	centre lease.Ledger
	nodes  []lease.Tab
	lives  []int // how often each has crashed: an answer finds only the life that asked
	flight []report
	now    quota.Instant
	meter  meter
}

// report is a message on its way: to the centre, or back with its answer.
type report struct {
	node     int
	life     int
	sent     quota.Instant
	n        int64
	answered bool
	debt     int64
}

// meter finds the largest excess over rate·t of any interval: the backlog over the rate line.
type meter struct {
	rate            *big.Rat
	backlog, most   *big.Rat
	last            quota.Instant
	tokens, crashes int64
}

func newMeter(p quota.Params) meter {
	return meter{rate: big.NewRat(p.Num, p.Den), backlog: new(big.Rat), most: new(big.Rat)}
}

func (m *meter) use(now quota.Instant, n int64) {
	m.backlog.Sub(m.backlog, new(big.Rat).Mul(m.rate, new(big.Rat).SetInt64(int64(now-m.last))))
	if m.backlog.Sign() < 0 {
		m.backlog.SetInt64(0)
	}
	m.last = now
	m.tokens += n
	m.backlog.Add(m.backlog, new(big.Rat).SetInt64(n))
	if m.backlog.Cmp(m.most) > 0 {
		m.most.Set(m.backlog)
	}
}

func newOptimisticGame(p quota.Params, nodes int) *optimisticGame {
	return &optimisticGame{p: p, slack: lease.Slack(p, int64(nodes)), nodes: make([]lease.Tab, nodes), lives: make([]int, nodes), now: 1, meter: newMeter(p)}
}

func (g *optimisticGame) use(node int, n int64) bool {
	var r quota.Result
	if g.nodes[node], r = g.nodes[node].Use(g.now, g.p, g.slack, n); r.Allowed {
		g.meter.use(g.now, n)
	}
	return r.Allowed
}

func (g *optimisticGame) report(node int) {
	tab := g.nodes[node].Report(g.now)
	g.nodes[node] = tab
	g.flight = append(g.flight, report{node: node, life: g.lives[node], sent: tab.Sent, n: tab.Reported})
}

// deliver moves the i-th message one step; keep leaves a copy on the way.
func (g *optimisticGame) deliver(i int, keep bool) {
	m := g.flight[i]
	if !keep {
		g.flight = append(g.flight[:i], g.flight[i+1:]...)
	}
	if m.answered && m.life != g.lives[m.node] {
		return
	}
	if m.answered {
		g.nodes[m.node] = g.nodes[m.node].Answered(g.now, m.sent, m.debt)
		return
	}
	var answer lease.Grant
	g.centre, answer = g.centre.Grant(g.now, lease.Ask{Params: g.p, Version: 1, Used: m.n})
	m.answered, m.debt = true, answer.Debt
	g.flight = append(g.flight, m)
}

func (g *optimisticGame) bound() *big.Rat {
	nodes := int64(len(g.nodes))
	return new(big.Rat).SetInt64(g.p.Burst + lease.Overshoot(g.p, nodes) + g.meter.crashes*g.slack)
}

// Whatever is lost, late or doubled, and whoever crashes: no interval passes the bound.
func TestOptimisticKeepsItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := quota.NewParams(rapid.Int64Range(1, 30).Draw(t, "quota"), quota.Second, rapid.Int64Range(1, 30).Draw(t, "burst"))
		if err != nil {
			t.Fatal(err)
		}
		g := newOptimisticGame(p, rapid.IntRange(1, 4).Draw(t, "nodes"))
		for range rapid.IntRange(20, 300).Draw(t, "steps") {
			node := rapid.IntRange(0, len(g.nodes)-1).Draw(t, "node")
			switch rapid.IntRange(0, 9).Draw(t, "move") {
			case 0, 1, 2, 3:
				g.use(node, rapid.Int64Range(1, 3).Draw(t, "cost"))
			case 4, 5:
				if tab := g.nodes[node]; tab.Unknown > 0 && (tab.Sent == 0 || rapid.Bool().Draw(t, "again")) {
					g.report(node)
				}
			case 6, 7:
				if len(g.flight) > 0 {
					g.deliver(rapid.IntRange(0, len(g.flight)-1).Draw(t, "message"), rapid.IntRange(0, 9).Draw(t, "double") == 0)
				}
			case 8:
				g.now += quota.Instant(rapid.Int64Range(0, 400_000).Draw(t, "pause"))
			case 9:
				if rapid.IntRange(0, 9).Draw(t, "crash") == 0 {
					g.nodes[node] = lease.Tab{}
					g.lives[node]++
					g.meter.crashes++
				}
			}
			if g.meter.most.Cmp(g.bound()) > 0 {
				t.Fatalf("%s in an interval over the rate; the bound is %s", g.meter.most.FloatString(2), g.bound().FloatString(2))
			}
		}
	})
}

// An adversary that sends everything to all nodes at once reaches the bound.
func TestOptimisticBoundIsReached(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 5, 11} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			p := params(t, 100, quota.Minute, 100)
			g := newOptimisticGame(p, nodes)
			// One node uses and reports until the centre has nothing left; the others have heard nothing of it yet.
			for g.use(0, 1) {
				if g.nodes[0].Due(g.now, g.slack) <= g.now {
					g.report(0)
					g.deliver(0, false)
					g.deliver(0, false)
				}
			}
			for node := range nodes {
				for g.use(node, 1) {
				}
			}
			reached, _ := new(big.Rat).Quo(g.meter.most, g.bound()).Float64()
			t.Logf("%d nodes, slack %d: %s of %s used at once", nodes, g.slack, g.meter.most.FloatString(0), g.bound().FloatString(0))
			if reached < 0.9 || reached > 1 {
				t.Errorf("%.3f of the bound was reached, want 0.9 to 1", reached)
			}
		})
	}
}

// What was used too much is paid back: in the long run the rate holds, and one node alone is exact.
func TestOptimisticDebtIsRepaid(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, nodes := range []int{1, 10} {
		p := params(t, 1000, quota.Second, 1000)
		g := newOptimisticGame(p, nodes)
		for g.now < 20*sec {
			g.now += quota.Instant(rng.Int64N(400)) // 5000 a second
			node := rng.IntN(nodes)
			g.use(node, 1)
			if g.nodes[node].Due(g.now, g.slack) <= g.now {
				g.report(node)
				g.deliver(0, false)
				g.deliver(0, false)
			}
		}
		share := float64(g.meter.tokens) / float64(21000+lease.Overshoot(p, int64(nodes)))
		t.Logf("%d nodes at 5 times overload: %.1f %% of burst and rate", nodes, 100*share)
		if share < 0.97 || share > 1.0001 {
			t.Errorf("%d nodes used %.4f of what may be used in 20 s", nodes, share)
		}
	}
}
