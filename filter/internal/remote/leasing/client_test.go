package leasing_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const ms = quota.Instant(quota.Millisecond)

// clock is settable time.
type clock struct{ now quota.Instant }

func (c *clock) Now() quota.Instant { return c.now }

// plane is a control plane whose answers the test lets go.
type plane struct {
	t         *testing.T
	params    quota.Params
	algorithm quota.Algorithm
	ledgers   map[keyhash.Key]lease.Ledger
	calls     []pending
	refuse    error
	// names: it names terms, and takes tokens back, once each.
	names bool
	taken map[uint64]bool
	// alone: no other node shares the buckets.
	alone bool
}

type pending struct {
	request wire.LeaseRequest
	timeout quota.Span
	done    func(int, []byte)
}

func (c *plane) Call(_ string, body []byte, timeout quota.Span, done func(int, []byte)) error {
	if c.refuse != nil {
		return c.refuse
	}
	m, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		c.t.Fatalf("the client sent %x: %v", body, err)
	}
	c.calls = append(c.calls, pending{m, timeout, done})
	return nil
}

// grant decides the oldest call at now by the rule of leases and returns the reply.
func (c *plane) grant(now quota.Instant) (pending, wire.LeaseReply) {
	p := c.calls[0]
	c.calls = c.calls[1:]
	reply := wire.LeaseReply{Seq: p.request.Seq, Nodes: 2}
	if c.alone {
		reply.Nodes = 1
	}
	for _, it := range p.request.Items {
		if it.Term != 0 {
			c.takeBack(now, &it)
			reply.Items = append(reply.Items, wire.LeaseAnswer{})
			continue
		}
		ask := lease.Ask{Params: c.params, Version: 1, Waiting: it.Waiting, Cost: it.Cost, Deadline: lease.Deadline,
			Keep: it.Keep, Nodes: reply.Nodes}
		ledger, g := c.ledgers[it.Bucket].Grant(now, ask)
		c.ledgers[it.Bucket] = ledger
		a := wire.LeaseAnswer{Waiting: g.Waiting, Keep: g.Keep, NotBefore: g.NotBefore, Level: g.Level}
		if c.names {
			a.Term = g.Term
		}
		reply.Items = append(reply.Items, a)
	}
	return p, reply
}

// takeBack takes tokens back that an item returns.
func (c *plane) takeBack(now quota.Instant, it *wire.LeaseItem) {
	if c.taken == nil {
		c.taken = map[uint64]bool{}
	}
	if c.taken[it.Reserved] {
		return
	}
	c.taken[it.Reserved] = true
	back := lease.Back{Unused: it.Returned, Used: it.Used}
	ledger, done := c.ledgers[it.Bucket].TakeBack(now, it.Term, back)
	if done != back {
		c.t.Errorf("%+v of %+v was leased", done, back)
	}
	c.ledgers[it.Bucket] = ledger
}

func (c *plane) answer(now quota.Instant) {
	p, reply := c.grant(now)
	p.done(200, wire.AppendLeaseReply(nil, reply))
}

// world is one worker at a node.
type world struct {
	*clock
	*plane
	client *leasing.Client
	data   *shareddatatest.Data
	store  *bucketstore.Store
	params quota.Params
	stream uint32
}

func newWorld(t *testing.T, q int64, window quota.Span, burst int64) *world {
	t.Helper()
	p, err := quota.NewParams(q, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	return worker(t, &shareddatatest.Data{}, &clock{now: 1000 * ms},
		&plane{t: t, params: p, ledgers: map[keyhash.Key]lease.Ledger{}})
}

func worker(t *testing.T, data *shareddatatest.Data, c *clock, cp *plane) *world {
	t.Helper()
	store := bucketstore.New(data, [4]byte{}, 64, 0)
	client := leasing.New(leasing.Config{
		Store: store, Client: cp, Clock: c, Shared: data,
		Node: "node", Boot: 1, Seed: 1,
	})
	return &world{clock: c, plane: cp, data: data, store: store, params: cp.params, client: client}
}

func (w *world) need(bucket byte, cost int64) leasing.Need {
	return leasing.Need{
		Bucket: keyhash.Key{bucket}, Version: 1, Params: w.params, Algorithm: w.algorithm, Cost: cost,
	}
}

// join lets a request of cost wait for a bucket, and sends.
func (w *world) join(t *testing.T, bucket byte, cost int64) *leasing.Ticket {
	t.Helper()
	w.stream++
	ticket := &leasing.Ticket{Stream: w.stream, Need: w.need(bucket, cost)}
	if !w.client.Ask(w.now, ticket) {
		t.Fatal("turned away")
	}
	w.client.Flush(w.now)
	return ticket
}

// spend tries to take cost from the node's tokens.
func (w *world) spend(bucket byte, cost int64) leasing.Spend {
	s := leasing.Spend{Need: w.need(bucket, cost), Now: w.now, Charge: true}
	_ = w.store.Update(bucketstore.Leased, s.Bucket, w.now, &s)
	return s
}

func TestOneCallABucket(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	first := w.join(t, 1, 1)
	second, third := w.join(t, 1, 1), w.join(t, 1, 1)
	other := w.join(t, 2, 1)
	if len(w.calls) != 1 || w.calls[0].request.Items[0].Waiting != 1 {
		t.Fatalf("calls %+v", w.calls)
	}
	w.answer(w.now)
	if first.Outcome != leasing.Granted || second.Outcome != leasing.Waiting {
		t.Fatalf("first %v, second %v", first.Outcome, second.Outcome)
	}
	if len(w.calls) != 1 || len(w.calls[0].request.Items) != 2 {
		t.Fatalf("requests that came meanwhile share one more call: %+v", w.calls)
	}
	for i, want := range []int64{2, 1} {
		if it := w.calls[0].request.Items[i]; it.Waiting != want {
			t.Errorf("item %d: %+v", i, it)
		}
	}
	w.answer(w.now)
	for i, ticket := range []*leasing.Ticket{second, third, other} {
		if ticket.Outcome != leasing.Granted {
			t.Errorf("ticket %d: %v", i, ticket.Outcome)
		}
	}
	if w.client.Waiting() != 0 || w.client.Nodes() != 2 {
		t.Errorf("%d wait, %d nodes", w.client.Waiting(), w.client.Nodes())
	}
}

// A poll says how many nodes share the buckets before any token is asked for, to all workers of the
// process, and allows none of them more than a token of a bucket that it has not asked for. Text
// that is no such number changes nothing.
func TestAPollTellsHowManyNodesShare(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	var data shareddatatest.Data
	one, other := worker(t, &data, w.clock, w.plane), worker(t, &data, w.clock, w.plane)
	for _, c := range []struct {
		text string
		want int64
	}{
		{"", 1}, {"4", 4}, {"", 4}, {"0", 4}, {"-1", 4}, {"5x", 4}, {"1048577", 4},
		{"99999999999999999999999999", 4}, {"1048576", 1048576}, {"1", 1},
	} {
		if one.client.HearNodes([]byte(c.text)); other.client.Nodes() != c.want {
			t.Errorf("after %q: %d, want %d", c.text, other.client.Nodes(), c.want)
		}
		other.client.Tick(w.clock.now)
		if slack := other.client.Slack(w.params); slack > 1 {
			t.Errorf("after %q a worker may use %d tokens unasked", c.text, slack)
		}
	}
}

// 300 requests come at once for 100 tokens: exactly 100 pass, and the others learn when to come
// back without asking again. Each request that one answer serves gets the level after it, and when
// that level is full again: a later request gets a lower level and a later time.
func TestRequestsServedTogetherLearnOneAfterTheOther(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	tickets := []*leasing.Ticket{w.join(t, 1, 1), w.join(t, 1, 1), w.join(t, 1, 1), w.join(t, 1, 1)}
	w.answer(w.now)
	w.client.Flush(w.now)
	w.answer(w.now)
	for i, ticket := range tickets {
		missing := int64(i + 1)
		full := w.now + quota.Instant(missing*36*int64(quota.Second))
		if ticket.Outcome != leasing.Granted || ticket.Level != 100-missing || ticket.FullAt != full {
			t.Errorf("request %d: %v, %d left, full in %d ms; %d and %d ms are right", i, ticket.Outcome,
				ticket.Level, (ticket.FullAt-w.now)/ms, 100-missing, (full-w.now)/ms)
		}
	}
}

func TestExactlyTheBurstPasses(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	var tickets []*leasing.Ticket
	passed := 0
	for i := range 300 {
		s := w.spend(1, 1)
		if s.Keep > 0 {
			w.client.Prefetch(s.Need, s.Keep, s.KeepBy, s.Spent)
		}
		switch s.State {
		case leasing.Ready:
			passed++
		case leasing.Missing:
			tickets = append(tickets, w.join(t, 1, 1))
		}
		if i%7 == 6 && len(w.calls) > 0 {
			w.now += ms
			w.answer(w.now)
			w.client.Flush(w.now)
		}
	}
	for w.client.Tick(w.now); len(w.calls) > 0; w.client.Tick(w.now) {
		w.answer(w.now)
	}
	for _, ticket := range tickets {
		switch ticket.Outcome {
		case leasing.Granted:
			passed++
		case leasing.Refused:
			if wait := ticket.Until - w.now; wait <= 30_000*ms || wait > 36_100*ms {
				t.Errorf("refused for %d µs", wait)
			}
		default:
			t.Errorf("ticket %v", ticket.Outcome)
		}
	}
	if passed != 100 {
		t.Errorf("%d passed", passed)
	}
	if s := w.spend(1, 1); s.State != leasing.Exhausted {
		t.Errorf("the refusal is not remembered: %v", s.State)
	}
}

// Answers count from the time of the call: tokens that come after the deadline are not used.
func TestLateAnswersAreNotUsed(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	ticket := w.join(t, 1, 1)
	p, reply := w.grant(w.now)
	w.now += quota.Instant(lease.Deadline)
	p.done(200, wire.AppendLeaseReply(nil, reply))
	if ticket.Outcome != leasing.Failed {
		t.Errorf("tokens that may be lent to another node by now: %v", ticket.Outcome)
	}
}

func TestFailures(t *testing.T) {
	good := func(p pending, r wire.LeaseReply) (int, []byte) { return 200, wire.AppendLeaseReply(nil, r) }
	for _, c := range []struct {
		name   string
		answer func(p pending, r wire.LeaseReply) (int, []byte)
		away   bool
	}{
		{"no answer", func(pending, wire.LeaseReply) (int, []byte) { return 0, nil }, true},
		{"a timeout", func(pending, wire.LeaseReply) (int, []byte) { return 504, nil }, true},
		{"no connection", func(pending, wire.LeaseReply) (int, []byte) { return 503, []byte("no healthy upstream") },
			true},
		{"garbage", func(pending, wire.LeaseReply) (int, []byte) { return 200, []byte("garbage") }, true},
		{"another request's answer", func(p pending, r wire.LeaseReply) (int, []byte) { r.Seq++; return good(p, r) },
			true},
		{"too few items", func(p pending, r wire.LeaseReply) (int, []byte) { r.Items = nil; return good(p, r) }, true},
		{"more than was asked for", func(p pending, r wire.LeaseReply) (int, []byte) {
			r.Items[0].Waiting = 9
			return good(p, r)
		}, false},
		{"more to keep than was asked for",
			func(p pending, r wire.LeaseReply) (int, []byte) { r.Items[0].Keep = 9; return good(p, r) }, false},
		{"an unknown policy", func(p pending, r wire.LeaseReply) (int, []byte) {
			r.Items[0].State = wire.ItemUnknown
			return good(p, r)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 100, quota.Hour, 100)
			asked, behind := w.join(t, 1, 1), w.join(t, 1, 1)
			p, reply := w.grant(w.now)
			p.done(c.answer(p, reply))
			if asked.Outcome != leasing.Failed {
				t.Errorf("the ticket ended as %v", asked.Outcome)
			}
			if c.away && behind.Outcome != leasing.Failed {
				t.Errorf("who queued behind keeps waiting: %v", behind.Outcome)
			}
			if since := w.client.Health.FailingSince(w.now + 5); c.away && since != w.now {
				t.Errorf("failing since %d", since)
			}
		})
	}
}

// After three failures requests no longer wait; the tick probes after a pause, and two answers end
// it.
func TestTheBreakerOpensProbesAndCloses(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	for range 3 {
		if _, away := w.client.Health.Away(); away {
			t.Fatal("open too early")
		}
		w.join(t, 1, 1)
		p, _ := w.grant(w.now)
		p.done(504, nil)
	}
	began := w.now
	if since, away := w.client.Health.Away(); !away || since != began {
		t.Fatalf("after three failures: away %v since %d", away, since)
	}
	for probe := range 2 {
		w.now += 250 * ms
		w.client.Tick(w.now)
		if since, away := w.client.Health.Away(); !away || since != began || len(w.calls) != 1 {
			t.Fatalf("at probe %d: away %v since %d, %d calls", probe, away, since, len(w.calls))
		}
		it := w.calls[0].request.Items[0]
		if len(w.calls[0].request.Items) != 1 || it.Bucket != (keyhash.Key{1}) || it.Waiting+it.Keep+it.Used != 0 ||
			w.calls[0].timeout != lease.Deadline {
			t.Fatalf("a probe must ask for nothing: %+v", w.calls[0])
		}
		w.answer(w.now)
		w.client.Tick(w.now)
		if len(w.calls) != 0 {
			t.Fatal("the second probe follows at once")
		}
	}
	if _, away := w.client.Health.Away(); away {
		t.Error("two answers do not close it")
	}
	// A call that cannot even be sent opens it at once.
	w.refuse = errors.New("no healthy host")
	if ticket := w.join(t, 1, 1); ticket.Outcome != leasing.Failed {
		t.Errorf("ticket %v", ticket.Outcome)
	}
	if _, away := w.client.Health.Away(); !away {
		t.Error("requests wait for a control plane that cannot be called")
	}
	// Tokens to keep do not add up meanwhile.
	w.refuse = nil
	for i := range 100 {
		w.client.Prefetch(w.need(byte(i), 1), 5, 0, [2]lease.Spent{})
	}
	w.now += 3000 * ms
	w.client.Tick(w.now)
	if len(w.calls) != 1 {
		t.Errorf("%d calls for tokens wanted during the outage, want only the probe", len(w.calls))
	}
	want := rpc.Counts{rpc.Answered: 2, rpc.NoAnswer: 3, rpc.Unsent: 1}
	if w.client.Stats.Calls != want {
		t.Errorf("the calls ended as %v, want %v", w.client.Stats.Calls, want)
	}
}

// Calls that hang for more than a second open it without a failure: Envoy ends these calls.
func TestSilenceOpensTheBreaker(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	began := w.now
	w.client.Settle(w.now, &leasing.Reservation{Need: w.need(1, 1), Name: 1<<16 + 1}, 0)
	for ; w.now < began+990*ms; w.now += 10 * ms {
		w.client.Tick(w.now)
		if _, away := w.client.Health.Away(); away {
			t.Fatalf("open after %d µs", w.now-began)
		}
	}
	w.now = began + 1000*ms
	w.client.Tick(w.now)
	if since, away := w.client.Health.Away(); !away || since != began {
		t.Errorf("after a second without an answer: away %v, since %d", away, since-began)
	}
}

// If another worker has had no answer, this worker's requests do not wait, unless this worker has
// had an answer since then.
func TestAnotherWorkersOutage(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.join(t, 1, 1)
	w.answer(w.now)
	w.now += 10 * ms
	heard := w.now
	w.client.Health.Hear(heard)
	if since, away := w.client.Health.Away(); !away || since != heard ||
		w.client.Health.FailingSince(w.now+ms) != heard {
		t.Errorf("another worker has no answer: away %v since %d", away, since)
	}
	w.now += 10 * ms
	w.join(t, 2, 1)
	w.answer(w.now)
	if _, away := w.client.Health.Away(); away {
		t.Error("this worker had an answer after the other one's failure")
	}
	w.client.Health.Hear(w.now + ms)
	w.client.Health.Hear(0)
	if _, away := w.client.Health.Away(); away {
		t.Error("the other worker is answered again")
	}
}

func TestDeadlineAndCancel(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	asked := w.join(t, 1, 1)
	behind := w.join(t, 1, 1)
	gone := w.join(t, 1, 1)
	w.client.Cancel(gone.Stream)
	w.now += quota.Instant(lease.Deadline) - 1
	w.client.Tick(w.now)
	if behind.Outcome != leasing.Waiting {
		t.Fatalf("ended before its deadline: %v", behind.Outcome)
	}
	w.now++
	w.client.Tick(w.now)
	// Also the request that a call carries: that call may be younger than the request.
	if behind.Outcome != leasing.Failed || gone.Outcome != leasing.Waiting || asked.Outcome != leasing.Failed {
		t.Errorf("at the deadline: %v %v %v", asked.Outcome, behind.Outcome, gone.Outcome)
	}
	w.answer(w.now) // It is late, and no request waits for it.
	if w.client.Waiting() != 0 {
		t.Errorf("%d still wait", w.client.Waiting())
	}
}

// Tokens that came for a request whose client is gone serve the next request.
func TestTokensOfTheGoneServeTheNext(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	gone := w.join(t, 1, 1)
	w.client.Cancel(gone.Stream)
	w.answer(w.now)
	if s := w.spend(1, 1); s.State != leasing.Ready {
		t.Errorf("state %v", s.State)
	}
	granted := w.join(t, 1, 1)
	w.answer(w.now)
	w.client.GiveBack(w.now, granted)
	if s := w.spend(1, 1); s.State != leasing.Ready {
		t.Errorf("after giving back: %v", s.State)
	}
}

func TestWaitersAreBounded(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	for range leasing.MaxWaiting {
		w.join(t, 1, 1)
	}
	if w.client.Ask(w.now, &leasing.Ticket{Stream: 9999, Need: w.need(1, 1)}) {
		t.Error("one more than the bound waits")
	}
}

// A busy key holds tokens for a quarter of their life and asks for more before they run out;
// requests do not wait.
func TestABusyKeyIsServedFromItsTokens(t *testing.T) {
	w := newWorld(t, 1000, quota.Second, 10_000) // TTL 500 ms
	waited, passed := 0, 0
	for i := range 4000 { // 400 a second for ten seconds
		w.now += 2500
		if i%4 == 0 {
			w.client.Tick(w.now)
			for len(w.calls) > 0 {
				w.answer(w.now)
			}
		}
		s := w.spend(1, 1)
		if s.Keep > 0 {
			w.client.Prefetch(s.Need, s.Keep, s.KeepBy, s.Spent)
		}
		switch s.State {
		case leasing.Ready:
			passed++
		case leasing.Missing:
			waited++
			w.join(t, 1, 1)
			w.answer(w.now)
		}
	}
	if waited > 80 {
		t.Errorf("%d of %d requests waited", waited, passed+waited)
	}
}

// A message takes 64 buckets, all asked under one policy set.
func TestCallsAreBatched(t *testing.T) {
	w := newWorld(t, 1000, quota.Second, 10_000)
	for i := range 100 {
		need := w.need(byte(i), 1)
		if i >= 90 {
			need.Version = 2
		}
		w.client.Prefetch(need, 5, 0, [2]lease.Spent{})
	}
	w.client.Flush(w.now)
	if len(w.calls) != 0 {
		t.Fatal("tokens to keep alone were asked for before the tick")
	}
	w.client.Tick(w.now)
	got := ""
	for _, c := range w.calls {
		got += fmt.Sprintf("%d@%d ", len(c.request.Items), c.request.Version)
	}
	if got != "64@1 26@1 10@2 " {
		t.Errorf("calls %s", got)
	}
}

// Two workers of a node: tokens that one worker brings serve the other's waiting requests, before
// these are refused.
func TestWorkersShareBroughtTokens(t *testing.T) {
	data, c := &shareddatatest.Data{}, &clock{now: 1000 * ms}
	p, err := quota.NewParams(100, quota.Hour, 100)
	if err != nil {
		t.Fatal(err)
	}
	cp := &plane{t: t, params: p, ledgers: map[keyhash.Key]lease.Ledger{}}
	a, b := worker(t, data, c, cp), worker(t, data, c, cp)
	b.stream = 1000
	// Worker b is about to fetch everything to keep; a's request comes to the control plane after
	// it.
	_ = a.store.Update(bucketstore.Leased, keyhash.Key{1}, c.now, keepUnderWay(c.now+200*ms))
	b.client.Prefetch(b.need(1, 1), 100, 0, [2]lease.Spent{})
	b.client.Tick(c.now)
	ticket := a.join(t, 1, 1)
	keep, reply := cp.grant(c.now)
	cp.ledgers[keyhash.Key{1}], _ = cp.ledgers[keyhash.Key{1}].Grant(c.now,
		lease.Ask{Params: p, Version: 1, Waiting: 100, Cost: 1, Nodes: 1})
	cp.answer(c.now)
	if ticket.Outcome != leasing.Waiting {
		t.Fatalf("refused although tokens are under way: %v", ticket.Outcome)
	}
	keep.done(200, wire.AppendLeaseReply(nil, reply))
	a.client.Tick(c.now)
	if ticket.Outcome != leasing.Granted || ticket.Until < c.now+1000*ms {
		t.Errorf("the other worker's tokens did not reach it: %v until %d", ticket.Outcome, ticket.Until-c.now)
	}
}

type keepUnderWay quota.Instant

func (k keepUnderWay) Apply(e *bucketstore.Entry) bool {
	e.Credit.KeepCall = quota.Instant(k)
	return true
}

// A bucket whose tickets ended at the tick is forgotten: many keys without tokens leave nothing
// behind.
func TestNothingIsLeftOfEndedBuckets(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	for i := range 200 {
		bucket := keyhash.Key{byte(i)}
		w.ledgers[bucket], _ = w.ledgers[bucket].Grant(w.now,
			lease.Ask{Params: w.params, Version: 1, Waiting: 100, Cost: 1, Nodes: 1})
		_ = w.store.Update(bucketstore.Leased, bucket, w.now, keepUnderWay(w.now+200*ms))
		ticket := w.join(t, byte(i), 1)
		w.answer(w.now)
		if ticket.Outcome != leasing.Waiting {
			t.Fatalf("while another worker asks for tokens: %v", ticket.Outcome)
		}
		w.now += quota.Instant(lease.Deadline)
		w.client.Tick(w.now)
		if ticket.Outcome != leasing.Refused {
			t.Fatalf("at the deadline: %v", ticket.Outcome)
		}
	}
	if n := w.client.Buckets(); n != 0 || w.client.Waiting() != 0 {
		t.Errorf("%d buckets and %d tickets are left", n, w.client.Waiting())
	}
}

// The first tick after the earliest time asks for tokens that can wait, all in one call.
func TestKeepsGoTogether(t *testing.T) {
	for at, calls := range map[quota.Instant]int{10: 0, 20: 0, 30: 1, 60: 1} {
		w := newWorld(t, 100, quota.Hour, 100)
		for i, by := range []quota.Instant{50, 25, 40} {
			w.client.Prefetch(w.need(byte(i), 1), 5, w.now+by*ms, [2]lease.Spent{})
		}
		w.client.Tick(w.now + at*ms)
		if len(w.calls) != calls || calls > 0 && len(w.calls[0].request.Items) != 3 {
			t.Errorf("after %d ms: calls %+v, want %d of 3 buckets", at, w.calls, calls)
		}
	}
}
