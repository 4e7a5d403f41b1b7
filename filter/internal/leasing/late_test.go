package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/leasing"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// A call that requests wait in fails at their deadline, as one without an answer. It is counted
// once, whatever comes of it later.
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

// Requests that come after a call is late wait for a call of their own. What the late answer says
// ends none of them, and its tokens for requests are not used; those to keep are.
func TestALateAnswerBelongsToNoRequest(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.client.Keep(w.need(1, 1), 2, 0)
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

// A late answer says what the bucket held then. It refuses nothing.
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
