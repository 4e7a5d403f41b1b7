package leasing_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const minute = 60_000 * ms

// owe takes one token of a bucket's share for a request that no call was made for. The bucket was
// full.
func (w *world) owe(bucket byte) {
	w.client.Owe(w.now, w.need(bucket, 1), &leasing.Ticket{}, w.params.Burst)
}

// late lets a request wait in vain, and takes its token from the share.
func (w *world) late(t *testing.T) pending {
	t.Helper()
	ticket := w.join(t, 1, 1)
	p := w.calls[len(w.calls)-1]
	w.calls = w.calls[:len(w.calls)-1]
	w.now += quota.Instant(lease.Deadline)
	w.client.Tick(w.now)
	if ticket.Outcome != leasing.Failed {
		t.Fatalf("%v", ticket.Outcome)
	}
	w.client.Owe(w.now, ticket.Need, ticket, w.params.Burst)
	return p
}

// dropProbes has the probes under way hang, and reports how many there were.
func (w *world) dropProbes() (n int) {
	w.calls = slices.DeleteFunc(w.calls, func(p pending) bool {
		if p.timeout == lease.Deadline {
			n++
		}
		return p.timeout == lease.Deadline
	})
	return n
}

// asked are the tokens that the call under way asks to charge, and the requests that wait in it.
func (w *world) asked(t *testing.T) (debt, waiting int64) {
	t.Helper()
	if len(w.calls) == 0 {
		return 0, 0
	}
	items := w.calls[0].request.Items
	if len(w.calls) > 1 || len(items) > 2 {
		t.Fatalf("%+v", w.calls)
	}
	return items[0].Waiting + items[0].Used, items[len(items)-1].Waiting
}

// Tokens that requests took from the share are charged ahead of the next request for the bucket, in
// its call.
func TestADebtIsChargedFirst(t *testing.T) {
	w := newWorld(t, 4, quota.Hour, 4)
	w.owe(1)
	w.owe(1)
	w.owe(2)
	first, second := w.join(t, 1, 1), w.join(t, 1, 2)
	items := w.calls[0].request.Items
	if len(items) != 2 || items[0].Waiting != 2 || items[0].Cost != 1 || items[1].Waiting != 1 ||
		items[0].Bucket != items[1].Bucket {
		t.Fatalf("%+v", items)
	}
	w.answer(w.now)
	w.answer(w.now)
	if first.Outcome != leasing.Granted || first.Level != 1 || second.Outcome != leasing.Refused {
		t.Errorf("of 4 tokens, 2 used before: %v with %d left, then %v", first.Outcome, first.Level, second.Outcome)
	}
	if owed := [2]int64{w.client.Owed(w.now, w.need(1, 1).Bucket),
		w.client.Owed(w.now, w.need(2, 1).Bucket)}; owed != [2]int64{0, 1} {
		t.Errorf("still owed: %v", owed)
	}
}

// If callers bring figures of their own, the figures of the caller who owes count.
func TestADebtHasTheFiguresOfItsCaller(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	owes, asks := w.need(1, 1), w.need(1, 1)
	owes.Quota, owes.Burst, asks.Quota, asks.Burst = 20, 20, 5, 5
	w.client.Owe(w.now, owes, &leasing.Ticket{}, 100)
	w.client.Ask(w.now, &leasing.Ticket{Stream: 1, Need: asks})
	w.client.Flush(w.now)
	if items := w.calls[0].request.Items; len(items) != 2 || items[0].Quota != 20 || items[1].Quota != 5 {
		t.Errorf("%+v", items)
	}
}

// The tick charges debts that no request's call takes along. Tokens that the bucket lacks are asked
// for again when it may have them.
func TestTheTickChargesDebts(t *testing.T) {
	w := newWorld(t, 60, quota.Hour, 1)
	w.owe(1)
	w.owe(1)
	w.client.Tick(w.now)
	if debt, _ := w.asked(t); debt != 2 {
		t.Fatalf("%d asked for", debt)
	}
	w.answer(w.now) // One was there.
	for at := w.now + 500*ms; w.now < at; w.now += 10 * ms {
		w.client.Tick(w.now)
	}
	if debt, _ := w.asked(t); debt != 0 {
		t.Errorf("asked for %d although the bucket is known to be empty", debt)
	}
	w.now += minute
	w.client.Tick(w.now)
	if debt, _ := w.asked(t); debt != 1 {
		t.Errorf("a minute later asked for %d, want 1", debt)
	}
}

// While a late call may still be answered, its request's tokens are not asked for. A late answer
// pays for them. If the call was not charged, the next call asks.
func TestALateAnswerPays(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(w *world, p pending)
		owed   int64
		charge int64
	}{
		{"it was charged", func(w *world, p pending) { w.calls = append(w.calls, p); w.answer(w.now) }, 0, 0},
		{"it was refused", func(w *world, p pending) { w.calls = append(w.calls, p); w.reply(short) }, 1, 1},
		{"the store was away", func(w *world, p pending) {
			w.calls = append(w.calls, p)
			w.reply(wire.LeaseAnswer{State: wire.ItemUnavailable})
		}, 1, 1},
		{"no answer came", func(w *world, p pending) { p.done(504, nil) }, 1, 1},
		{"nonsense", func(w *world, p pending) { p.done(200, []byte("?")) }, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 100, quota.Hour, 100)
			p := w.late(t)
			w.now += 500 * ms
			w.client.Tick(w.now)
			if debt, _ := w.asked(t); debt != 0 {
				t.Errorf("%d asked for while the late call is open", debt)
			}
			if n := w.dropProbes(); n != 1 {
				t.Errorf("%d probes find out whether the control plane is there", n)
			}
			c.end(w, p)
			if owed := w.client.Owed(w.now, w.need(1, 1).Bucket); owed != c.owed {
				t.Errorf("%d owed, want %d", owed, c.owed)
			}
			w.now += 500 * ms
			w.client.Tick(w.now)
			if debt, _ := w.asked(t); debt != c.charge {
				t.Errorf("%d asked for, want %d", debt, c.charge)
			}
		})
	}
}

// A late turn in a leaky bucket's queue is charged as late tokens are, so it pays too.
func TestALateTurnPays(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.algorithm = quota.LeakyBucket
	p := w.late(t)
	w.calls = append(w.calls, p)
	w.reply(wire.LeaseAnswer{Waiting: 1, Delay: quota.Second})
	if owed := w.client.Owed(w.now, w.need(1, 1).Bucket); owed != 0 {
		t.Errorf("%d owed", owed)
	}
	w.now += 500 * ms
	w.client.Tick(w.now)
	if debt, _ := w.asked(t); debt != 0 {
		t.Errorf("%d turns are asked for again", debt)
	}
}

// An answer that comes late, but before the tick has seen it, pays for its own requests.
func TestALateTicketKnowsThatItIsCharged(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	ticket := w.join(t, 1, 1)
	p, reply := w.grant(w.now)
	w.now += quota.Instant(lease.Deadline)
	p.done(200, wire.AppendLeaseReply(nil, reply))
	w.client.Owe(w.now, ticket.Need, ticket, w.params.Burst)
	if owed := w.client.Owed(w.now, ticket.Need.Bucket); !ticket.Charged || owed != 0 {
		t.Errorf("charged %v, %d owed", ticket.Charged, owed)
	}
}

// In an outage a debt fades at the rate of the node's share, once the bucket is full: tokens that
// the bucket would have earned then pay for it. While the control plane answers it does not fade.
func TestADebtFadesInAnOutage(t *testing.T) {
	for _, c := range []struct {
		away  bool
		holds int64 // when the tokens were taken
		after quota.Instant
		want  int64
	}{
		{false, 60, 60 * minute, 3},
		{true, 60, 0, 3},
		{true, 60, 2*minute - 1, 3},
		{true, 60, 2 * minute, 2},
		{true, 60, 5 * minute, 1},
		{true, 60, 6 * minute, 0},
		{true, 50, 10 * minute, 3},
		{true, 50, 12 * minute, 2},
		{true, 50, 16 * minute, 0},
	} {
		w := newWorld(t, 60, quota.Hour, 60)
		w.join(t, 9, 1)
		w.answer(w.now) // There are two nodes.
		if c.away {
			w.refuse = errors.New("no healthy host")
			w.join(t, 9, 1)
		}
		for range 3 {
			w.client.Owe(w.now, w.need(1, 1), &leasing.Ticket{}, c.holds)
		}
		w.client.Tick(w.now)
		w.now += c.after
		if owed := w.client.Owed(w.now, w.need(1, 1).Bucket); owed != c.want {
			t.Errorf("away %v, of a bucket that held %d, %d s later %d are owed, want %d",
				c.away, c.holds, c.after/(1000*ms), owed, c.want)
		}
	}
}

// A bucket of optimistic mode receives the used tokens, even if it lacks them.
func TestADebtOfAnOptimisticBucketIsReported(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	need := w.need(1, 5)
	need.Optimistic = true
	w.client.Owe(w.now, need, &leasing.Ticket{}, 0)
	w.client.Tick(w.now)
	if it := w.calls[0].request.Items[0]; it.Used != 5 || it.Waiting != 0 {
		t.Fatalf("%+v", it)
	}
	w.reply(wire.LeaseAnswer{Debt: 5})
	if owed := w.client.Owed(w.now, need.Bucket); owed != 0 {
		t.Errorf("%d owed", owed)
	}
}

// Tokens whose lease ends unused pay debts: they are charged.
func TestLapsedTokensPay(t *testing.T) {
	w := newWorld(t, 100, quota.Hour, 100)
	w.client.Prefetch(w.need(1, 1), 5, 0, [2]lease.Spent{})
	w.join(t, 1, 1)
	w.answer(w.now)
	w.now += minute
	w.late(t)
	w.join(t, 1, 1)
	w.answer(w.now)
	if w.client.Stats.Lapsed != 4 || w.client.Owed(w.now, w.need(1, 1).Bucket) != 0 {
		t.Errorf("%d lapsed, %d owed", w.client.Stats.Lapsed, w.client.Owed(w.now, w.need(1, 1).Bucket))
	}
}

// Debts are bounded. Faded debts leave nothing behind when the outage is over.
func TestDebtsAreBounded(t *testing.T) {
	w := newWorld(t, 60, quota.Hour, 60)
	w.join(t, 9, 1)
	w.answer(w.now)
	w.client.Health.Hear(w.now + 1) // Another worker has no answer.
	w.client.Tick(w.now + 1)
	for i := range 2000 {
		need := w.need(byte(i), 1)
		need.Bucket[1] = byte(i >> 8)
		w.client.Owe(w.now+1, need, &leasing.Ticket{}, 60)
	}
	if n := w.client.Debts(); n != 1024 {
		t.Errorf("%d buckets, want 1024", n)
	}
	w.now += 10 * minute
	w.client.Health.Hear(0)
	w.client.Tick(w.now)
	if n := w.client.Debts(); n != 0 || len(w.calls) != 0 {
		t.Errorf("%d buckets and %d calls are left", n, len(w.calls))
	}
}
