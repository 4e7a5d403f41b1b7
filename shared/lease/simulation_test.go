package lease_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/vtimetest"
)

// fleet is one bucket, one control plane and some nodes in virtual time: Poisson demand, half a
// millisecond to one and a half each way, a tick of 10 ms. Nodes do as the filter does: one call at
// a time for requests that wait, the others queue behind it.
type fleet struct {
	r       *rand.Rand
	p       quota.Params
	now     quota.Instant
	due     vtimetest.Queue[quota.Instant]
	ledger  lease.Ledger
	nodes   []*node
	perfect quota.State // a bucket that decides at once, for comparison
	bound   quota.State // the tokens that have passed must always fit a full bucket

	load float64 // demand as a multiple of the rate

	from                                             quota.Instant // earlier events are not counted
	sent, ideal, calls, waited, refused, early, over int64
}

type node struct {
	credit  lease.Credit
	queue   []quota.Instant // deadlines of the requests that wait
	asked   int
	inCall  bool
	keep    int64
	passed  int64
	longest quota.Instant
}

const (
	simulatedTick = 10 * quota.Millisecond
	askAhead      = 25 * quota.Millisecond
	keepTimeout   = 250 * quota.Millisecond
)

func (f *fleet) after(d quota.Span, fire func()) {
	f.due.Add(f.now+quota.Instant(d), fire)
}

// start readies nodes on which demand falls by weight.
func (f *fleet) start(weights []float64) {
	sums, sum := make([]float64, len(weights)), 0.0
	for i, w := range weights {
		sum += w
		sums[i] = sum
		n := &node{}
		f.nodes = append(f.nodes, n)
		f.after(quota.Span(f.r.Int64N(int64(simulatedTick))), func() { f.tick(n) })
	}
	var arrive func()
	arrive = func() {
		x, i := f.r.Float64()*sum, 0
		for sums[i] < x {
			i++
		}
		f.request(f.nodes[i])
		gap := float64(f.p.Den) / (f.load * float64(f.p.Num))
		f.after(max(1, quota.Span(f.r.ExpFloat64()*gap)), arrive)
	}
	f.after(1, arrive)
}

// run lets time pass.
func (f *fleet) run(span quota.Span) {
	end := f.now + quota.Instant(span)
	for e, ok := f.due.Next(end - 1); ok; e, ok = f.due.Next(end - 1) {
		f.now = e.At
		e.Fire()
	}
	f.now = end
}

func (f *fleet) counts() int64 {
	if f.now < f.from {
		return 0
	}
	return 1
}

func (f *fleet) request(n *node) {
	f.sent += f.counts()
	var r quota.Result
	if f.perfect, r = f.p.Take(f.perfect, f.now, 1); r.Allowed {
		f.ideal += f.counts()
	}
	switch f.spend(n) {
	case "ready":
		f.pass(n)
	case "exhausted":
		f.refuse()
	default:
		f.waited += f.counts()
		n.queue = append(n.queue, f.now+quota.Instant(lease.Deadline))
		f.call(n)
	}
}

// spend does the filter's work for a request.
func (f *fleet) spend(n *node) string {
	c, state := n.credit, "ready"
	if _, refused := c.Refused(f.now, f.p, 1, false); c.Available(f.now) < 1 {
		if refused {
			return "exhausted"
		}
		state = "missing"
	}
	cost := int64(1)
	if state == "missing" {
		cost = 0
	}
	if keep, _ := c.Keep(f.now, f.p, cost, askAhead); keep > 0 {
		c = c.Call(f.now, f.now+quota.Instant(keepTimeout), f.p)
		n.keep = max(n.keep, keep)
	}
	if state == "ready" {
		c, _, _ = c.Spend(f.now, f.p, 1)
	}
	n.credit = c
	return state
}

func (f *fleet) pass(n *node) {
	n.passed += f.counts()
	var r quota.Result
	if f.bound, r = f.p.Take(f.bound, f.now, 1); !r.Allowed {
		f.over++
	}
}

// refuse counts a refusal, and whether the control plane has a token at the time.
func (f *fleet) refuse() {
	f.refused += f.counts()
	ask := lease.Ask{Params: f.p, Version: 1, Waiting: 1, Cost: 1}
	if _, g := f.ledger.Look(f.now, ask); g.NotBefore == 0 {
		f.early += f.counts()
	}
}

// call asks for whom waits, and for tokens to keep along with them.
func (f *fleet) call(n *node) {
	if n.inCall || len(n.queue) == 0 {
		return
	}
	n.inCall, n.asked = true, len(n.queue)
	f.send(n, lease.Ask{Params: f.p, Version: 1, Waiting: int64(n.asked), Cost: 1, Deadline: lease.Deadline,
		Keep: n.keep, Nodes: int64(len(f.nodes))})
}

func (f *fleet) send(n *node, ask lease.Ask) {
	n.keep = 0
	sent := f.now
	way := func() quota.Span { return 500 + quota.Span(f.r.Int64N(int64(quota.Millisecond))) }
	f.after(way(), func() {
		f.calls += f.counts()
		var g lease.Grant
		f.ledger, g = f.ledger.Grant(f.now, ask)
		f.after(way(), func() { f.settle(n, sent, ask, g) })
	})
}

func (f *fleet) settle(n *node, sent quota.Instant, ask lease.Ask, g lease.Grant) {
	c := n.credit.Observe(f.now, f.p, ask.Waiting)
	c = c.Learn(f.now, ask, g, lease.BackOff(f.p), f.r.Int64N(1024))
	if ask.Keep > 0 {
		c.KeepCall = 0
	}
	n.credit = c.Receive(f.now, lease.Lease{Tokens: g.Keep, Expiry: lease.Expiry(sent, lease.TTL(f.p))})
	if ask.Waiting == 0 {
		return
	}
	n.inCall = false
	asked := n.queue[:n.asked]
	rest := n.queue[n.asked:]
	var kept []quota.Instant
	for i, deadline := range asked {
		n.longest = max(n.longest, f.now-(deadline-quota.Instant(lease.Deadline)))
		switch {
		case int64(i) < g.Waiting, f.spend(n) == "ready":
			f.pass(n)
		case f.now < n.credit.KeepCall && f.now < deadline:
			kept = append(kept, deadline)
		default:
			f.refuse()
		}
	}
	n.queue, n.asked = append(kept, rest...), 0
	if len(rest) > 0 {
		f.call(n)
	}
}

// tick checks all tokens again, ends requests that have waited too long, and asks for tokens to
// keep.
func (f *fleet) tick(n *node) {
	queue := append([]quota.Instant(nil), n.queue[:n.asked]...)
	for _, deadline := range n.queue[n.asked:] {
		switch state := f.spend(n); {
		case state == "ready":
			f.pass(n)
		case f.now >= deadline, state == "exhausted" && f.now >= n.credit.KeepCall:
			f.refuse()
		default:
			queue = append(queue, deadline)
		}
	}
	n.queue = queue
	f.call(n)
	if n.keep > 0 {
		f.send(n, lease.Ask{Params: f.p, Version: 1, Cost: 1, Keep: n.keep, Nodes: int64(len(f.nodes))})
	}
	f.after(simulatedTick, func() { f.tick(n) })
}

// jain is Jain's index of fairness: 1 if all nodes got the same, 1/n if one got everything.
func (f *fleet) jain() float64 {
	var sum, squares float64
	for _, n := range f.nodes {
		sum += float64(n.passed)
		squares += float64(n.passed) * float64(n.passed)
	}
	return sum * sum / (float64(len(f.nodes)) * squares)
}

func (f *fleet) passed() (all int64) {
	for _, n := range f.nodes {
		all += n.passed
	}
	return all
}

func (f *fleet) longest() (longest quota.Instant) {
	for _, n := range f.nodes {
		longest = max(longest, n.longest)
	}
	return longest
}

// zipf weighs n nodes by 1, 1/2, 1/3 and so on; even weighs them the same.
func zipf(n int) []float64 {
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1 / float64(i+1)
	}
	return weights
}

func even(n int) []float64 {
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1
	}
	return weights
}

// The costs of leases and the requests that they let through, by load, by the distribution of
// demand over the nodes, and by the number of nodes. One bucket costs each node 1.2 calls in the
// time that a lease covers, whatever its traffic. A few hundredths fewer requests pass than with a
// bucket that decided at once, and nodes with equal demand share them evenly.
func TestSimulatedFleet(t *testing.T) {
	for _, c := range []struct {
		p          quota.Params
		warm, span quota.Span
		nodes      []int
	}{
		{params(t, 1000, quota.Second, 1000), 10 * quota.Second, 10 * quota.Second, []int{2, 10, 50}},
		{params(t, 100, quota.Minute, 100), 5 * quota.Minute, 20 * quota.Minute, []int{2, 10}},
	} {
		t.Logf("%+v", c.p)
		t.Logf("load demand nodes goodput%% calls/s  bound  jain waited%% early%% longest")
		for _, load := range []float64{0.5, 0.95, 1.2, 2, 5} {
			for _, demand := range []struct {
				name    string
				weights func(int) []float64
			}{{"even", even}, {"zipf", zipf}} {
				for _, nodes := range c.nodes {
					f := &fleet{r: rand.New(rand.NewPCG(1, uint64(nodes))), p: c.p, load: load,
						from: quota.Instant(c.warm)}
					f.start(demand.weights(nodes))
					f.run(c.warm + c.span)
					f.check(t, demand.name, c.span)
				}
			}
		}
	}
}

func (f *fleet) check(t *testing.T, demand string, span quota.Span) {
	goodput, jain := 100*float64(f.passed())/float64(f.ideal), f.jain()
	calls := float64(f.calls) * float64(quota.Second) / float64(span)
	bound := 1.2 * float64(len(f.nodes)) * float64(quota.Second) / float64(lease.BackOff(f.p))
	share := func(n int64) float64 { return 100 * float64(n) / float64(f.sent) }
	row := fmt.Sprintf("%4.2f %s   %4d   %7.2f %8.1f %6.1f %5.3f %7.2f %6.2f %5.1f ms", f.load, demand, len(f.nodes),
		goodput, calls, bound, jain, share(f.waited), share(f.early), float64(f.longest())/1000)
	t.Log(row)
	if f.over > 0 {
		t.Errorf("%s: %d passed beyond the limit", row, f.over)
	}
	if f.longest() > quota.Instant(lease.Deadline) {
		t.Errorf("%s: waited too long", row)
	}
	if f.load < 1 && goodput < 99.5 || goodput < 98 {
		t.Errorf("%s: too little passed", row)
	}
	if calls > bound {
		t.Errorf("%s: too many calls", row)
	}
	if demand == "even" && f.load > 1 && len(f.nodes) <= 10 && jain < 0.95 {
		t.Errorf("%s: unfair", row)
	}
	if f.load < 1 && f.refused > 0 && f.early > f.sent/1000 {
		t.Errorf("%s: refused early below the limit", row)
	}
}

// When an overload is over, callers pass again: of two thousand requests at half load one at most
// comes just where the tokens of its node are on their way.
func TestRationingEnds(t *testing.T) {
	var refused, sent int64
	for seed := range uint64(20) {
		f := &fleet{r: rand.New(rand.NewPCG(seed, 1)), p: params(t, 1000, quota.Second, 1000), load: 5, from: 1 << 50}
		f.start(even(10))
		f.run(5 * quota.Second)
		f.load, f.from = 0.5, f.now+quota.Instant(500*quota.Millisecond)
		f.run(5 * quota.Second)
		refused, sent = refused+f.refused, sent+f.sent
	}
	if refused*2000 > sent {
		t.Errorf("%d of %d refused at half load", refused, sent)
	}
}

// Requests that come all at once, within the burst, get through.
func TestBurstIsNotRationed(t *testing.T) {
	for _, spread := range []quota.Span{10 * quota.Millisecond, 100 * quota.Millisecond, 500 * quota.Millisecond} {
		f := &fleet{r: rand.New(rand.NewPCG(1, 2)), p: params(t, 1000, quota.Second, 1000), load: 0.001, from: 1 << 50}
		f.start(even(10))
		f.run(5 * quota.Second)
		f.from = f.now
		for i := range 950 {
			f.after(spread*quota.Span(i)/950, func() { f.request(f.nodes[0]) })
		}
		f.run(quota.Second)
		t.Logf("950 in %d ms: %d of %d refused, %d calls", spread/quota.Millisecond, f.refused, f.sent, f.calls)
		if f.refused > 0 {
			t.Error("refused within the burst")
		}
	}
}
