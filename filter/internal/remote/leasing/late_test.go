package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A call in which requests wait fails at their deadline, as unanswered. It is counted once,
// whatever happens to it later.
func TestALateCallFailsOnce(t *testing.T) {
	for name, status := range map[string]int{"an answer": 200, "a timeout": 504, "a refusal": 429} {
		w := newWorld(t, 100, quota.Hour, 100)
		asked, behind := w.join(t, 1, 1), w.join(t, 1, 1)
		if late := w.client.LateAt(); late != w.now+quota.Instant(lease.Deadline) {
			t.Fatalf("late in %d ms", (late-w.now)/ms)
		}
		w.now += quota.Instant(lease.Deadline) - 1
		if w.client.EndLate(w.now); asked.Outcome != leasing.Waiting {
			t.Fatalf("%s: before the deadline: %v", name, asked.Outcome)
		}
		w.now++
		if w.client.EndLate(w.now); asked.Outcome != leasing.Failed || behind.Outcome != leasing.Failed {
			t.Errorf("%s: at the deadline: %v and %v", name, asked.Outcome, behind.Outcome)
		}
		since := w.client.Health.FailingSince(w.now + ms)
		w.now += 100 * ms
		p, reply := w.grant(w.now)
		p.done(status, wire.AppendLeaseReply(nil, reply))
		if got := w.client.Health.FailingSince(w.now + ms); since != w.now-100*ms || got != since {
			t.Errorf("%s: failing since %d, later %d", name, since, got)
		}
		if want := (rpc.Counts{rpc.NoAnswer: 1}); w.client.Stats.Calls != want {
			t.Errorf("%s: the calls ended as %v", name, w.client.Stats.Calls)
		}
	}
}

// Requests that come after a call is late wait for a call of their own. The late answer ends none
// of them, and its tokens for requests are not used; its tokens to keep are kept.
func TestALateAnswerBelongsToNoRequest(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.client.Prefetch(w.need(1, 1), 2, 0, [2]lease.Spent{})
	w.join(t, 1, 1)
	p, reply := w.grant(w.now)
	w.now += quota.Instant(lease.Deadline)
	w.client.Tick(w.now)
	next := w.join(t, 1, 1)
	if len(w.calls) != 1 {
		t.Fatalf("%d calls for the next request", len(w.calls))
	}
	p.done(200, wire.AppendLeaseReply(nil, reply))
	if next.Outcome != leasing.Waiting {
		t.Fatalf("the next request ended as %v", next.Outcome)
	}
	behind := w.join(t, 1, 1)
	if len(w.calls) != 1 {
		t.Errorf("a second call for the bucket")
	}
	for range 2 {
		if s := w.spend(1, 1); s.State != leasing.Ready {
			t.Errorf("a token to keep: %v", s.State)
		}
	}
	if s := w.spend(1, 1); s.State != leasing.Missing {
		t.Errorf("a token that came too late: %v", s.State)
	}
	w.answer(w.now)
	w.answer(w.now)
	if next.Outcome != leasing.Granted || behind.Outcome != leasing.Granted {
		t.Errorf("the requests behind ended as %v and %v", next.Outcome, behind.Outcome)
	}
}

// A late answer describes the bucket of that time. It refuses nothing.
func TestALateRefusalIsNotRemembered(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.join(t, 1, 1)
	w.now += quota.Instant(lease.Deadline)
	w.client.Tick(w.now)
	w.now += 100 * ms
	w.reply(short)
	if s := w.spend(1, 1); s.State != leasing.Missing {
		t.Errorf("%v until %d ms", s.State, (s.Until-w.now)/ms)
	}
}

// Tokens to keep are kept although their answer is too late for its requests, even if the tick has
// not seen yet that it is late.
func TestTokensToKeepAreKeptHoweverLate(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.client.Prefetch(w.need(1, 1), 2, 0, [2]lease.Spent{})
	ticket := w.join(t, 1, 1)
	p, reply := w.grant(w.now)
	w.now += quota.Instant(lease.Deadline)
	p.done(200, wire.AppendLeaseReply(nil, reply))
	if ticket.Outcome != leasing.Failed || !ticket.Charged {
		t.Errorf("the request ended as %v, charged %v", ticket.Outcome, ticket.Charged)
	}
	for i, want := range []leasing.State{leasing.Ready, leasing.Ready, leasing.Missing} {
		if s := w.spend(1, 1); s.State != want {
			t.Errorf("token %d to keep: %v", i, s.State)
		}
	}
}

// Many requests of a late call do not go on at once. The tokens charged by its answer are for them,
// also if it comes before they have owed: each token is charged once.
func TestALateAnswerPaysForThoseThatGoOnAfterIt(t *testing.T) {
	for _, c := range []struct {
		name          string
		algorithm     quota.Algorithm
		optimistic    bool
		granted, owed int64
	}{
		{"all were charged", quota.TokenBucket, false, 4, 0},
		{"three were charged", quota.TokenBucket, false, 3, 1},
		{"none was charged", quota.TokenBucket, false, 0, 4},
		{"all turns of a queue were charged", quota.LeakyBucket, false, 4, 0},
		{"all were charged, optimistic", quota.TokenBucket, true, 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 100, quota.Hour, 100)
			w.algorithm = c.algorithm
			var tickets []*leasing.Ticket
			for i := range 4 {
				ticket := &leasing.Ticket{Stream: uint32(i), Need: w.need(1, 1)}
				ticket.Need.Optimistic = c.optimistic
				w.client.Ask(w.now, ticket)
				tickets = append(tickets, ticket)
			}
			w.client.Flush(w.now)
			p := w.calls[0]
			w.now += quota.Instant(lease.Deadline)
			w.client.EndLate(w.now)
			outcomes(t, tickets, leasing.Failed)
			w.client.Owe(w.now, tickets[0].Need, tickets[0], 100)
			w.now += ms
			p.done(200, wire.AppendLeaseReply(nil, wire.LeaseReply{Seq: p.request.Seq, Nodes: 2,
				Items: []wire.LeaseAnswer{{Waiting: c.granted}}}))
			for _, ticket := range tickets[1:] {
				w.client.Owe(w.now, ticket.Need, ticket, 100)
			}
			if owed := w.client.Owed(w.now, w.need(1, 1).Bucket); owed != c.owed {
				t.Errorf("%d owed, want %d", owed, c.owed)
			}
			next := &leasing.Ticket{Stream: 9, Need: tickets[0].Need}
			w.client.Owe(w.now, next.Need, next, 100)
			if owed := w.client.Owed(w.now, next.Need.Bucket); owed != c.owed+1 {
				t.Errorf("with a request of no call %d owed, want %d", owed, c.owed+1)
			}
		})
	}
}

// The answers to maxLate late calls are awaited for callLife. Answers to further calls are not, so
// that calls do not pile up in Envoy.
func TestLateCallsAreBounded(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	long := 0
	for range 200 {
		ticket := &leasing.Ticket{Stream: 1, Need: w.need(1, 1)}
		w.client.Ask(w.now, ticket)
		w.client.Flush(w.now)
		p := w.calls[len(w.calls)-1]
		w.calls = nil
		w.now += quota.Instant(lease.Deadline)
		w.client.EndLate(w.now)
		if p.timeout > quota.Second {
			long++
		} else if p.timeout != 250*quota.Millisecond {
			t.Fatalf("an answer may take %d ms", p.timeout/quota.Millisecond)
		}
		w.join(t, 2, 1) // So the breaker stays closed.
		w.answer(w.now)
	}
	if long != 64 {
		t.Errorf("%d late calls are awaited, want 64", long)
	}
}

// A late call whose successor is answered is given up some time after that: another call charges
// its tokens, and its own answer does not count any more.
func TestACallThatIsOutrunIsLost(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	p := w.late(t)
	bucket := w.need(1, 1).Bucket
	w.now += 500 * ms
	w.client.Tick(w.now)
	if debt, _ := w.asked(t); debt != 0 {
		t.Fatalf("%d asked for although no later call was answered", debt)
	}
	w.dropProbes()
	w.join(t, 2, 1)
	w.answer(w.now)
	for end := w.now + 200*ms; w.now < end; w.now += ms {
		w.client.Tick(w.now)
		if debt, _ := w.asked(t); debt != 0 {
			t.Fatalf("%d asked for %d ms too early", debt, (end-w.now)/ms)
		}
	}
	for end := w.now + 250*ms; w.now <= end && len(w.calls) == 0; w.now += ms {
		w.client.Tick(w.now)
	}
	if debt, _ := w.asked(t); debt != 1 {
		t.Fatalf("asked for %d, want 1", debt)
	}
	w.answer(w.now)
	w.calls = append(w.calls, p)
	w.answer(w.now)
	w.owe(1)
	if owed := w.client.Owed(w.now, bucket); owed != 1 {
		t.Errorf("%d owed: the answer of the lost call has paid for another request", owed)
	}
}
