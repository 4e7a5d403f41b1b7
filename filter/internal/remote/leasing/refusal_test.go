package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A key that is asked for once, and is over its limit, costs one call: until its time all workers
// of the process refuse it by that answer, in strict mode too. Then one worker asks again. In
// leased mode it does so sooner if there are other nodes, which may have given tokens back: after
// half a back-off at the earliest.
func TestAllWorkersKnowARefusal(t *testing.T) {
	p, err := quota.NewParams(100, quota.Minute, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, strict := range []bool{false, true} {
		data, c := &shareddatatest.Data{}, &clock{now: 1000 * ms}
		cp := &plane{t: t, params: p, ledgers: map[keyhash.Key]lease.Ledger{}}
		a, b := worker(t, data, c, cp), worker(t, data, c, cp)
		need := a.need(1, 1)
		need.Strict = strict
		ticket := &leasing.Ticket{Stream: 1, Need: need}
		a.client.Ask(c.now, ticket)
		a.client.Flush(c.now)
		a.reply(short)
		if ticket.Outcome != leasing.Refused {
			t.Fatalf("the first request: %v", ticket.Outcome)
		}
		until, asks := c.now+7000*ms, c.now+7000*ms
		if !strict {
			asks = c.now + quota.Instant(lease.BackOff(p)/2)
		}
		for ; c.now < asks; c.now += 100 * ms {
			for _, w := range []*world{a, b} {
				if s := w.spend(1, 1); s.State != leasing.Exhausted || s.Until != until {
					t.Fatalf("strict %v, %d ms before its time: %v until %d", strict, (until-c.now)/ms, s.State,
						s.Until)
				}
			}
		}
		if c.now = until - ms; !strict && b.spend(1, 1).State != leasing.Missing {
			t.Error("it does not ask whether others have given tokens back")
		}
		c.now = until
		if s := b.spend(1, 1); s.State != leasing.Missing {
			t.Errorf("strict %v, when its time has come: %v", strict, s.State)
		}
	}
}

// A request that is refused while another worker is asking for tokens to keep waits for these, and
// does not ask again: the answer has said when that is of use.
func TestARequestThatWaitsForTokensToKeepAsksNoMore(t *testing.T) {
	for _, c := range []struct {
		name string
		kept int64
		want leasing.Outcome
	}{{"they come", 3, leasing.Granted}, {"none come", 0, leasing.Refused}} {
		t.Run(c.name, func(t *testing.T) {
			a := newWorld(t, 100, quota.Hour, 100)
			data := &shareddatatest.Data{}
			a, b := worker(t, data, a.clock, a.plane), worker(t, data, a.clock, a.plane)
			_ = a.store.Update(bucketstore.Leased, keyhash.Key{1}, a.now, keepUnderWay(a.now+200*ms))
			a.client.Prefetch(a.need(1, 1), 3, 0, [2]lease.Spent{})
			a.client.Tick(a.now)
			keeping := a.calls[0]
			a.calls = a.calls[1:]
			ticket := b.join(t, 1, 1)
			a.now += ms
			b.reply(short)
			for range 3 {
				if b.client.Tick(b.now); ticket.Outcome != leasing.Waiting || len(b.calls) != 0 {
					t.Fatalf("the request is %v, %d calls", ticket.Outcome, len(b.calls))
				}
				a.now += 10 * ms
			}
			keeping.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: keeping.request.Seq, Nodes: 2,
				Items: []wire.LeaseAnswer{{Keep: c.kept}}}))
			b.client.Tick(b.now)
			if ticket.Outcome != c.want || len(b.calls) != 0 {
				t.Errorf("the request is %v, want %v; %d calls", ticket.Outcome, c.want, len(b.calls))
			}
		})
	}
}

// heldTokens is the change that puts tokens in hand, as another worker's answer does.
type heldTokens lease.Lease

// Apply implements bucketstore.Change.
func (h heldTokens) Apply(e *bucketstore.Entry) bool {
	e.Credit = e.Credit.Receive(0, lease.Lease(h))
	return true
}

// A refusal shows the level after the requests before it have taken the tokens in hand, also if a
// later answer has come first: it is 0 if the refusal names a wait.
func TestARefusalSaysThatNothingIsLeft(t *testing.T) {
	const inHand = 3
	a := newWorld(t, 100, quota.Hour, 100)
	data := &shareddatatest.Data{}
	a, b := worker(t, data, a.clock, a.plane), worker(t, data, a.clock, a.plane)
	a.client.Prefetch(a.need(1, 1), 3, 0, [2]lease.Spent{})
	a.client.Tick(a.now)
	keeping := a.calls[0]
	a.calls = a.calls[1:]
	var tickets []*leasing.Ticket
	for stream := range uint32(2 * inHand) {
		ticket := &leasing.Ticket{Stream: stream + 1, Need: b.need(1, 1)}
		if !b.client.Ask(b.now, ticket) {
			t.Fatal("turned away")
		}
		tickets = append(tickets, ticket)
	}
	b.client.Flush(b.now)
	a.now += ms
	_ = a.store.Update(bucketstore.Leased, keyhash.Key{1}, a.now, heldTokens{Tokens: inHand, Expiry: a.now + 1000*ms})
	b.reply(short)
	for i, ticket := range tickets {
		switch {
		case i < inHand && ticket.Outcome != leasing.Granted, i >= inHand && ticket.Outcome != leasing.Refused:
			t.Errorf("request %d: %v", i, ticket.Outcome)
		case i >= inHand && ticket.Level > 0:
			t.Errorf("request %d is refused, and %d are left", i, ticket.Level)
		}
	}
	// An answer from before comes last.
	keeping.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: keeping.request.Seq, Nodes: 2,
		Items: []wire.LeaseAnswer{{Level: 2}}}))
	for range 3 {
		a.now += ms
		if s := b.spend(1, 1); s.State == leasing.Exhausted && s.Level > 0 {
			t.Errorf("a request is refused for %d ms, and %d are left", (s.Until-s.Now)/ms, s.Level)
		}
	}
}
