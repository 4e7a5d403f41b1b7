package lease_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// optimisticGame is a control plane and nodes with a network between them that delays, loses and
// doubles.
type optimisticGame struct {
	p     quota.Params
	slack int64
	// own draws figures of a caller's own, and those by which its node earns; nil: all have p.
	own    func() (caller, earning quota.Params)
	plane  lease.Ledger
	nodes  []lease.Account
	lives  []int // how often each has crashed: an answer finds only the life that asked
	flight []report
	now    quota.Instant
	meter  meter
}

// report is a message on its way: to the control plane, or back with its answer.
type report struct {
	node     int
	life     int
	sent     quota.Instant
	n        int64
	answered bool
	debt     int64
	// question means that several requests ask for n tokens each; granted is the number of requests
	// that the control plane has tokens for.
	question         bool
	waiting, granted int64
	fate             fate
}

// fate is the end of the requests of a question.
type fate int

const (
	passes    fate = iota
	leaves         // Half of the clients, or the only client, leave before the answer comes.
	isRefused      // Another policy refuses them later: tokens granted for them are given back.
)

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
	return &optimisticGame{p: p, slack: lease.Slack(p, int64(nodes)), nodes: make([]lease.Account, nodes),
		lives: make([]int, nodes), now: 1, meter: newMeter(p)}
}

// figures returns the figures of the next caller, and the figures that its node assumes.
func (g *optimisticGame) figures() (caller, reckoning quota.Params) {
	if g.own == nil {
		return g.p, g.p
	}
	caller, earning := g.own()
	return caller, quota.Params{Num: earning.Num, Den: earning.Den, Burst: caller.Burst}
}

func (g *optimisticGame) use(node int, n int64) bool {
	var r quota.Result
	caller, reckoning := g.figures()
	slack := g.slack
	if g.own != nil {
		slack = lease.Slack(caller, int64(len(g.nodes)))
	}
	if g.nodes[node], r = g.nodes[node].Use(g.now, reckoning, slack, n); r.Allowed {
		g.meter.use(g.now, n)
	}
	return r.Allowed
}

func (g *optimisticGame) report(node int) {
	account := g.nodes[node].Report(g.now)
	g.nodes[node] = account
	g.flight = append(g.flight, report{node: node, life: g.lives[node], sent: account.Sent, n: account.Reported})
}

func (g *optimisticGame) ask(node int, requests, n int64, then fate) {
	g.flight = append(g.flight, report{
		node: node, life: g.lives[node], sent: g.now, n: n, question: true, waiting: requests, fate: then,
	})
}

// deliver moves the i-th message one step; keep leaves a copy on the way, which no one answers if
// it is a question: a call has one answer at most.
func (g *optimisticGame) deliver(i int, keep bool) {
	m := g.flight[i]
	switch {
	case !keep || m.question && m.answered:
		g.flight = append(g.flight[:i], g.flight[i+1:]...)
	case m.question:
		g.flight[i].life = -1
	}
	switch {
	case !m.answered:
		g.flight = append(g.flight, g.book(m))
	case m.life != g.lives[m.node]:
	case m.question:
		g.decided(m)
	default:
		_, reckoning := g.figures()
		g.nodes[m.node] = g.nodes[m.node].Answered(g.now, m.sent, reckoning, m.debt)
	}
}

// book is a message with the control plane's answer.
func (g *optimisticGame) book(m report) report {
	caller, _ := g.figures()
	ask := lease.Ask{Params: caller, Version: 1, Optimistic: true, Used: m.n}
	if g.own != nil {
		ask.Most = g.p
	}
	if m.question {
		ask.Used, ask.Waiting, ask.Cost, ask.Deadline = 0, m.waiting, m.n, lease.Deadline
	}
	var answer lease.Grant
	g.plane, answer = g.plane.Grant(g.now, ask)
	m.answered, m.debt, m.granted = true, answer.Debt, answer.Waiting
	return m
}

// decided delivers the answer to a question, or the event after it, to the node that asked, if it
// is in time.
func (g *optimisticGame) decided(m report) {
	if g.now >= lease.Expiry(m.sent, lease.Deadline) {
		return
	}
	account := &g.nodes[m.node]
	if m.fate == isRefused && m.debt < 0 {
		*account = account.GiveBack(m.n)
		return
	}
	by := lease.Answer{Sent: m.sent, Debt: m.debt, Cost: m.n, Granted: m.granted, Wanted: m.granted}
	if m.fate == leaves {
		by.Wanted /= 2
	}
	var used int64
	_, reckoning := g.figures()
	*account, used, _ = account.Decided(g.now, reckoning, by)
	if used *= m.n; used > 0 && m.fate == isRefused {
		m.debt, m.n = -1, used
		g.flight = append(g.flight, m)
	} else if used > 0 {
		g.meter.use(g.now, used)
	}
}

func (g *optimisticGame) bound() *big.Rat {
	nodes := int64(len(g.nodes))
	return new(big.Rat).SetInt64(g.p.Burst + lease.Overshoot(g.p, nodes) + g.meter.crashes*g.slack)
}

// Whatever is lost, late or doubled, and whichever node crashes: no interval passes the bound.
func TestOptimisticKeepsItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := quota.NewParams(rapid.Int64Range(1, 30).Draw(t, "quota"), quota.Second,
			rapid.Int64Range(1, 30).Draw(t, "burst"))
		if err != nil {
			t.Fatal(err)
		}
		newOptimisticGame(p, rapid.IntRange(1, 4).Draw(t, "nodes")).play(t, quota.Second)
	})
}

// The bound also holds where callers bring figures of their own, for any mixture and any rate at
// which a node earns: it is the bound of the largest figures.
func TestOptimisticKeepsItsBoundWithFiguresOfCallers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]quota.Span{quota.Second, quota.Minute, quota.Day}).Draw(t, "window")
		most, err := policy.NewLimit(
			policy.Counting{}, rapid.SampledFrom([]int64{1, 7, 30, 1000, 1_000_000}).Draw(t, "quota"), window,
			rapid.Int64Range(0, 30).Draw(t, "burst"),
		)
		if err != nil {
			t.Fatal(err)
		}
		g := newOptimisticGame(most.Params, rapid.IntRange(1, 4).Draw(t, "nodes"))
		for i := range g.nodes {
			g.nodes[i].Unit = most.Params.Den
		}
		g.own = func() (caller, earning quota.Params) {
			units := rapid.SampledFrom([]int64{1, 7, most.Quota/2 + 1, most.Quota}).Draw(t, "own quota")
			caller = most.For(units, rapid.Int64Range(0, most.Params.Burst).Draw(t, "own burst")).Params
			return caller, rapid.SampledFrom([]quota.Params{caller, most.Params}).Draw(t, "earning")
		}
		g.play(t, window)
	})
}

// play makes moves at random, and compares the used tokens with the bound.
func (g *optimisticGame) play(t *rapid.T, window quota.Span) {
	for range rapid.IntRange(20, 300).Draw(t, "steps") {
		node := rapid.IntRange(0, len(g.nodes)-1).Draw(t, "node")
		switch rapid.IntRange(0, 11).Draw(t, "move") {
		case 0, 1, 2, 3:
			g.use(node, rapid.Int64Range(1, max(3, g.p.Burst/10)).Draw(t, "cost"))
		case 4, 5:
			if account := g.nodes[node]; account.Unknown > 0 && (account.Sent == 0 || rapid.Bool().Draw(t, "again")) {
				g.report(node)
			}
		case 6, 7:
			if len(g.flight) > 0 {
				g.deliver(rapid.IntRange(0, len(g.flight)-1).Draw(t, "message"),
					rapid.IntRange(0, 9).Draw(t, "double") == 0)
			}
		case 8:
			g.now += quota.Instant(rapid.Int64Range(0, int64(window)/5*2).Draw(t, "pause"))
		case 10, 11: // More than the filter asks: whatever the node knows, and several at a time.
			g.ask(node, rapid.Int64Range(1, 5).Draw(t, "requests"),
				rapid.Int64Range(1, g.p.Burst).Draw(t, "dear"), fate(rapid.IntRange(0, 2).Draw(t, "fate")))
		case 9:
			if rapid.IntRange(0, 9).Draw(t, "crash") == 0 {
				g.nodes[node] = lease.Account{Unit: g.nodes[node].Unit}
				g.lives[node]++
				g.meter.crashes++
			}
		}
		if g.meter.most.Cmp(g.bound()) > 0 {
			t.Fatalf("%s in an interval over the rate; the bound is %s", g.meter.most.FloatString(2),
				g.bound().FloatString(2))
		}
	}
}

// The answer to a report can be older than that to a question, also where the report's name is
// ahead of the clock. A node that forgets the later news uses tokens that are gone.
func TestAnOlderAnswerIsNoNews(t *testing.T) {
	const first, second = 0, 1
	g := newOptimisticGame(params(t, 1, quota.Second, 21), 2)
	send := func(node int, cost int64) {
		t.Helper()
		if !g.use(node, cost) {
			t.Fatalf("node %d may not use %d", node, cost)
		}
		g.report(node)
	}
	last := func() int { return len(g.flight) - 1 }
	send(first, 3)
	g.deliver(last(), false)
	g.deliver(last(), false)
	// All in one instant, so the next report gets the name after this report's name.
	send(first, 1)
	if account := g.nodes[first]; account.Sent <= g.now {
		t.Fatalf("the report is named %d at %d", account.Sent, g.now)
	}
	g.deliver(last(), false)
	older := last()
	send(second, 10)
	g.deliver(last(), false)
	g.ask(first, 1, 2, passes)
	g.deliver(last(), false)
	g.deliver(last(), false)
	g.deliver(older, false)
	g.now++ // The answer is as new as the report's name.
	if left := g.nodes[first].Remaining(g.now, g.p); left != 21-3-1-10-2 {
		t.Errorf("the node believes that %d are left", left)
	}
}

// An adversary that sends everything to all nodes at once reaches the bound.
func TestOptimisticBoundIsReached(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 5, 11} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			p := params(t, 100, quota.Minute, 100)
			g := newOptimisticGame(p, nodes)
			// One node uses and reports until the control plane has nothing left; the others have
			// heard nothing of it yet.
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
			t.Logf("%d nodes, slack %d: %s of %s used at once", nodes, g.slack, g.meter.most.FloatString(0),
				g.bound().FloatString(0))
			if reached < 0.9 || reached > 1 {
				t.Errorf("%.3f of the bound was reached, want 0.9 to 1", reached)
			}
		})
	}
}

// Excess use is paid back: in the long run the rate holds, and a single node is exact.
func TestOptimisticDebtIsRepaid(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	p, larger := params(t, 1000, quota.Second, 1000), params(t, 3333, quota.Second, 5000)
	for i, nodes := range []int{1, 10, 1, 10} {
		g := newOptimisticGame(p, nodes)
		if i > 1 { // Others could have more, so debts are in units of theirs.
			g.own = func() (caller, earning quota.Params) { return p, p }
			g.p = larger
			for node := range g.nodes {
				g.nodes[node].Unit = larger.Den
			}
		}
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
			t.Errorf("game %d: %d nodes used %.4f of the allowed tokens in 20 s", i, nodes, share)
		}
	}
}

// The less of the slack a node has used, the later it reports; a report without an answer is made
// again.
func TestWhenToReport(t *testing.T) {
	const never = quota.Forever
	for _, c := range []struct {
		slack, unknown int64
		sent           quota.Instant
		want           quota.Instant
	}{
		{slack: 160, unknown: 0, want: never},
		{slack: 160, unknown: 1, want: 2000 * ms},
		{slack: 160, unknown: 9, want: 2000 * ms},
		{slack: 160, unknown: 10, want: 1100 * ms},
		{slack: 160, unknown: 79, want: 1100 * ms},
		{slack: 160, unknown: 80, want: 1500 * ms},
		{slack: 1, unknown: 1, want: 1500 * ms},
		{slack: 5, unknown: 1, want: 1100 * ms},
		{slack: 160, unknown: 80, sent: 1400 * ms, want: 7400 * ms},
	} {
		account := lease.Account{Unknown: c.unknown, Since: 1000 * ms, Sent: c.sent}
		if got := account.Due(1500*ms, c.slack); got != c.want {
			t.Errorf("%+v: due at %d ms", c, got/ms)
		}
		if c.sent == 0 {
			continue
		}
		again := account.Unanswered(1500 * ms)
		if got := again.Due(1500*ms, c.slack); got != 1750*ms {
			t.Errorf("%+v: without an answer due at %d ms", c, got/ms)
		}
		p := quota.Params{Num: 1, Den: 1 << 20, Burst: 100}
		if late := again.Answered(1600*ms, c.sent, p, 7); late != again {
			t.Errorf("%+v: an answer to a report that counts as lost is taken in: %+v", c, late)
		}
	}
}

// After a change of a limit, a node's account belongs to the old limit. The control plane decides
// until it has answered with the new limit. So a caller that has waited for a window of the new
// limit is not refused for its earlier use.
func TestAChangedAccountAsks(t *testing.T) {
	figures := func(units int64, window quota.Span) quota.Params {
		p, err := quota.NewParams(units, window, units)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := figures(100, quota.Minute)
	for _, next := range []quota.Params{
		figures(10, quota.Minute), figures(200, quota.Minute), figures(10, quota.Hour),
	} {
		a := lease.Account{Debt: before.UnitsFor(90), Heard: 1}.Convert(before, next, 0)
		after := quota.Instant(1 + quota.Minute)
		if _, got := a.Use(after, next, next.Burst, 1); got.Allowed || !a.Asks(after, next, 1) {
			t.Errorf("%v: decided by the old limit: %+v", next, got)
		}
		answer := lease.Answer{Sent: after, Debt: next.UnitsFor(1), Cost: 1, Granted: 1, Wanted: 1}
		a, used, _ := a.Decided(after, next, answer)
		if _, got := a.Use(after, next, next.Burst, 1); used != 1 || !got.Allowed {
			t.Errorf("%v: after the answer %d are used, then %+v", next, used, got)
		}
	}
	if a := (lease.Account{}).Convert(before, figures(1, quota.Hour), 0); a.Stale {
		t.Error("a bucket that was not used has to be asked about")
	}
}

// The tokens of a full bucket's first grant keep it from refilling for a while. A report that
// leaves meanwhile has the name of its time all the same: an answer to a question that leaves later
// may count it, and so is not sure.
func TestAReportIsNotNamedAheadOfItsTime(t *testing.T) {
	p := params(t, 10, quota.Hour, 10)
	now := quota.Instant(1e15)
	a, used, sure := lease.Account{}.Decided(now, p, lease.Answer{
		Sent: now - 1000, Debt: 5 * p.Den, Cost: 1, Granted: 5, Wanted: 5,
	})
	if used != 5 || !sure {
		t.Fatalf("%d used, %v", used, sure)
	}
	for range 2 {
		var r quota.Result
		if a, r = a.Use(now+10, p, 5, 1); !r.Allowed {
			t.Fatal("there are tokens")
		}
	}
	if a = a.Report(now + 20); a.Sent != now+20 {
		t.Errorf("a report of %d is named %d", now+20, a.Sent)
	}
	// The answer to a question that left after the report counts it.
	_, used, sure = a.Decided(now+2000, p, lease.Answer{
		Sent: now + 30, Debt: 10 * p.Den, Cost: 1, Granted: 3, Wanted: 3,
	})
	if sure {
		t.Errorf("it is sure, and %d of three pass", used)
	}
}
