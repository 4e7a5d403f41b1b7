package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Requests that share an item get its tokens in the order of their arrival. A request that left the
// item leaves its tokens to the next request.
func TestAnItemIsSharedInOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens int64
		gone   int // of the three that share the item
		want   []leasing.Outcome
		inHand leasing.State
	}{
		{"enough", 3, -1, []leasing.Outcome{leasing.Granted, leasing.Granted, leasing.Granted}, leasing.Missing},
		{"too few", 2, -1, []leasing.Outcome{leasing.Granted, leasing.Granted, leasing.Refused}, leasing.Exhausted},
		{"one left", 3, 0, []leasing.Outcome{leasing.Waiting, leasing.Granted, leasing.Granted}, leasing.Ready},
		{"one left, too few", 2, 1, []leasing.Outcome{leasing.Granted, leasing.Waiting, leasing.Granted},
			leasing.Exhausted},
		{"none", 0, -1, []leasing.Outcome{leasing.Refused, leasing.Refused, leasing.Refused}, leasing.Exhausted},
	} {
		w := newWorld(t, 100, quota.Hour, 100)
		w.join(t, 1, 1)
		tickets := []*leasing.Ticket{w.join(t, 1, 1), w.join(t, 1, 1), w.join(t, 1, 1)}
		w.reply(granted)
		if c.gone >= 0 {
			w.client.Cancel(tickets[c.gone].Stream)
		}
		answer := wire.LeaseAnswer{Waiting: c.tokens}
		if c.tokens < 3 {
			answer.NotBefore = 7 * quota.Second
		}
		w.reply(answer)
		for i, ticket := range tickets {
			if ticket.Outcome != c.want[i] {
				t.Errorf("%s: request %d: %v, want %v", c.name, i, ticket.Outcome, c.want[i])
			}
		}
		if s := w.spend(1, 1); s.State != c.inHand {
			t.Errorf("%s: in hand: %v, want %v", c.name, s.State, c.inHand)
		}
	}
}

// Requests that cost differently do not share an item, but all requests that wait for a bucket
// share a call: in the order of their arrival, with a new item at each change of cost.
func TestAnItemHasOneCost(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.join(t, 1, 1)
	tickets := []*leasing.Ticket{w.join(t, 1, 2), w.join(t, 1, 2), w.join(t, 1, 1), w.join(t, 1, 3)}
	w.reply(wire.LeaseAnswer{Waiting: 1})
	if len(w.calls) != 1 || len(w.calls[0].request.Items) != 3 {
		t.Fatalf("%+v", w.calls)
	}
	for i, want := range [][2]int64{{2, 2}, {1, 1}, {1, 3}} {
		it := w.calls[0].request.Items[i]
		if got := [2]int64{it.Waiting, it.Cost}; got != want {
			t.Errorf("item %d is for %d requests of %d tokens, want %v", i, got[0], got[1], want)
		}
	}
	later := w.join(t, 1, 1)
	if len(w.calls) != 1 {
		t.Error("a second call for the bucket is under way")
	}
	w.reply(wire.LeaseAnswer{Waiting: 1, NotBefore: quota.Second}, wire.LeaseAnswer{Waiting: 1},
		wire.LeaseAnswer{NotBefore: quota.Minute})
	for i, want := range []leasing.Outcome{leasing.Granted, leasing.Refused, leasing.Granted, leasing.Refused} {
		if got := tickets[i].Outcome; got != want {
			t.Errorf("request %d: %v, want %v", i, got, want)
		}
	}
	if later.Outcome != leasing.Waiting || len(w.calls) != 1 {
		t.Fatalf("the next one: %v, %d calls", later.Outcome, len(w.calls))
	}
	w.reply(wire.LeaseAnswer{Waiting: 1})
	if w.client.Waiting() != 0 || w.client.Buckets() != 0 {
		t.Errorf("%d requests and %d buckets are left", w.client.Waiting(), w.client.Buckets())
	}
}

// Without an answer all of a bucket's requests in the call fail over, whatever they cost.
func TestAllCostsFailOver(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.join(t, 1, 1)
	tickets := []*leasing.Ticket{w.join(t, 1, 2), w.join(t, 1, 1), w.join(t, 1, 3)}
	w.reply(wire.LeaseAnswer{Waiting: 1})
	lost := w.calls[0]
	w.calls = nil
	behind := w.join(t, 1, 4)
	lost.done(504, nil)
	for i, ticket := range append(tickets, behind) {
		if ticket.Outcome != leasing.Failed {
			t.Errorf("request %d: %v", i, ticket.Outcome)
		}
	}
	if w.client.Waiting() != 0 || w.client.Buckets() != 0 {
		t.Errorf("%d requests and %d buckets are left", w.client.Waiting(), w.client.Buckets())
	}
}

// Tokens to keep that come serve the requests that wait for them, without another call.
func TestTokensToKeepServeThoseThatWait(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	err := w.store.Update(bucketstore.Leased, w.need(1, 1).Bucket, w.now, keepUnderWay(w.now+200*ms))
	if err != nil {
		t.Fatal(err)
	}
	w.client.Prefetch(w.need(1, 1), 5, 0, [2]lease.Spent{})
	w.client.Tick(w.now)
	ticket := w.join(t, 1, 1)
	keep := w.calls[0]
	w.calls = w.calls[1:]
	w.reply(short)
	if ticket.Outcome != leasing.Waiting {
		t.Fatalf("%v although tokens are under way", ticket.Outcome)
	}
	keep.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{
		Seq: keep.request.Seq, Nodes: 2, Items: []wire.LeaseAnswer{{Keep: 5}},
	}))
	if ticket.Outcome != leasing.Granted || len(w.calls) != 0 {
		t.Errorf("%v, with %d calls", ticket.Outcome, len(w.calls))
	}
}

// When the breaker opens no request waits for the next tick: a request whose tokens have come gets
// them, the others fail over at once.
func TestQueuedRequestsEndWhenTheBreakerOpens(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	fail := func() {
		p := w.calls[0]
		w.calls = w.calls[1:]
		p.done(504, nil)
	}
	for range 2 {
		w.join(t, 1, 1)
		fail()
	}
	w.join(t, 2, 1)
	served, single, several := w.join(t, 100, 1), w.join(t, 101, 1), w.joinAll(t, 102, 103)
	if len(w.calls) != 1 {
		t.Fatalf("%d calls, want one", len(w.calls))
	}
	brought := leasing.Ticket{Need: w.need(100, 1), Until: w.now + quota.Instant(lease.Deadline)}
	w.client.GiveBack(w.now, &brought)
	fail()
	if served.Outcome != leasing.Granted || single.Outcome != leasing.Failed || several[0].Outcome != leasing.Failed {
		t.Errorf("with tokens in hand: %v, without: %v, for two buckets: %v", served.Outcome, single.Outcome,
			several[0].Outcome)
	}
}

// Tokens to keep that are noted while a call for their bucket is under way leave in a later tick,
// also if no request waits for the bucket any more.
func TestTokensToKeepWaitForTheCallUnderWay(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.join(t, 1, 1)
	w.client.Prefetch(w.need(1, 1), 5, 0, [2]lease.Spent{})
	w.client.Tick(w.now)
	if len(w.calls) != 1 {
		t.Fatalf("%d calls for one bucket are under way", len(w.calls))
	}
	w.reply(granted)
	w.client.Tick(w.now)
	if len(w.calls) != 1 || w.calls[0].request.Items[0].Keep != 5 {
		t.Errorf("calls %+v, want a call for 5 tokens to keep", w.calls)
	}
}

// If other limits decide a request too, its answer brings the tokens to keep too, so that the next
// request finds them. They are an item of their own, so that the request's tokens can go back by
// their term. The call reports used tokens, even if there are no tokens to keep. A request that no
// other limit decides has them in its own item.
func TestTokensToKeepComeBesideARequestOfSeveralLimits(t *testing.T) {
	for _, c := range []struct {
		beside bool
		keep   int64
	}{{true, 3}, {true, 0}, {false, 3}} {
		w := newWorld(t, 100, quota.Hour, 100)
		need := w.need(1, 1)
		need.Beside = c.beside
		other := need // The newest need of the line is of a request with no other limit.
		other.Beside = !c.beside
		ticket := &leasing.Ticket{Stream: 1, Need: need}
		if !w.client.Ask(w.now, ticket) {
			t.Fatal("turned away")
		}
		w.client.Prefetch(other, c.keep, w.now+25*ms, [2]lease.Spent{{Term: 7, Tokens: 2}})
		w.client.Flush(w.now)
		if len(w.calls) != 1 {
			t.Fatalf("%+v: %d calls", c, len(w.calls))
		}
		items := w.calls[0].request.Items
		if items[0].Term != 7 || items[0].Used != 2 {
			t.Fatalf("%+v: the call does not report the used tokens: %+v", c, items)
		}
		first := wire.LeaseAnswer{Waiting: 1, Level: 5, Term: 8}
		if apart := c.beside && c.keep > 0; apart {
			if len(items) != 3 || items[1].Keep != 0 || items[2].Keep != c.keep || items[2].Waiting != 0 {
				t.Fatalf("%+v: asked for %+v", c, items)
			}
			w.reply(wire.LeaseAnswer{}, first, wire.LeaseAnswer{Keep: c.keep, Level: 2, Term: 9})
		} else {
			if len(items) != 2 || items[1].Keep != c.keep {
				t.Fatalf("%+v: asked for %+v", c, items)
			}
			first.Keep = c.keep
			w.reply(wire.LeaseAnswer{}, first)
		}
		if ticket.Outcome != leasing.Granted || (ticket.Term == 8) != c.beside {
			t.Errorf("%+v: %+v", c, ticket)
		}
		for range c.keep {
			if s := w.spend(1, 1); s.State != leasing.Ready {
				t.Errorf("%+v: the next request finds %v", c, s.State)
			}
		}
		if w.client.Tick(w.now + 50*ms); len(w.calls) != 0 {
			t.Errorf("%+v: asked again: %+v", c, w.calls[0].request.Items)
		}
	}
}
