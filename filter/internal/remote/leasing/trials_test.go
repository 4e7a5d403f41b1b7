package leasing_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Trials ask for the same tokens as requests that come at the same instants: the same items in the
// same calls, and the control plane grants them the same.
func TestTrialsAskAsRequestsDo(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		var worlds [2]*world
		var tickets [2][]*leasing.Ticket
		var seen [2][]pending
		r := rand.New(rand.NewPCG(seed, 1))
		window := []quota.Span{quota.Second, 4 * quota.Second, quota.Minute}[r.IntN(3)]
		for i := range worlds {
			worlds[i] = newWorld(t, 10, window, 10)
			worlds[i].names = true
		}
		for step := range 60 {
			bucket, cost, open := byte(r.IntN(2)), 1+r.Int64N(3), r.IntN(2)*(step%3)
			tick := quota.Instant(r.IntN(3)) * ms
			for i, w := range worlds {
				need := w.need(bucket, cost)
				need.Strict = true
				ticket := &leasing.Ticket{Stream: uint32(step + 1), Need: need, Deadline: w.now + 50*ms}
				if i == 1 {
					ticket.Stream, ticket.Trial = 0, uint32(step+1)
				}
				if !w.client.Ask(w.now, ticket) {
					t.Fatal("turned away")
				}
				tickets[i] = append(tickets[i], ticket)
				w.client.Flush(w.now)
				w.now += tick
				for len(w.calls) > open { // None takes longer than tokens that are used soon are good.
					seen[i] = append(seen[i], w.calls[0])
					w.answer(w.now)
				}
			}
			sameCalls(t, seed, seen[0], seen[1])
			for n, ticket := range tickets[0] {
				if other := tickets[1][n]; other.Outcome != ticket.Outcome {
					t.Fatalf("seed %d: step %d: the request is %v, its trial %v", seed, n, ticket.Outcome,
						other.Outcome)
				}
			}
		}
	}
}

// sameCalls compares the items of calls.
func sameCalls(t *testing.T, seed uint64, requests, trials []pending) {
	t.Helper()
	if len(requests) != len(trials) {
		t.Fatalf("seed %d: %d calls for requests, %d for trials", seed, len(requests), len(trials))
	}
	for i, call := range requests {
		if items := trials[i].request.Items; len(items) != len(call.request.Items) {
			t.Fatalf("seed %d: call %d: %+v for requests, %+v for trials", seed, i, call.request.Items, items)
		}
		for n, it := range call.request.Items {
			if other := trials[i].request.Items[n]; other != it {
				t.Fatalf("seed %d: call %d: requests ask for %+v, trials for %+v", seed, i, it, other)
			}
		}
	}
}

// A request that gets nothing is refused, although tokens to keep are being asked for: this worker
// asks for them in the same call or later, of a bucket that has less than the request needs.
func TestARequestAwaitsNoTokensToKeepOfItsWorker(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(t, 100, quota.Hour, 100)
		need := w.need(1, 2)
		need.Beside = true
		if err := w.store.Update(bucketstore.Leased, need.Bucket, w.now, keepUnderWay(w.now+200*ms)); err != nil {
			t.Fatal(err)
		}
		ticket := &leasing.Ticket{Stream: 1, Need: need}
		keep := func() { w.client.Prefetch(need, 5, w.now+50*ms, [2]lease.Spent{}) }
		if !late {
			keep()
		}
		if !w.client.Ask(w.now, ticket) {
			t.Fatal("turned away")
		}
		if w.client.Flush(w.now); late {
			keep()
		}
		if items := len(w.calls[0].request.Items); late != (items == 1) {
			t.Fatalf("late %v: %d items", late, items)
		}
		w.reply([]wire.LeaseAnswer{short, {}}[:len(w.calls[0].request.Items)]...)
		if ticket.Outcome != leasing.Refused || w.client.Waiting() != 0 || len(w.calls) != 0 {
			t.Errorf("late %v: %v, %d calls", late, ticket.Outcome, len(w.calls))
		}
	}
}

// Requests of an optimistic limit, and those in a queue, that cost differently share a call, too.
func TestAllCostsShareACall(t *testing.T) {
	for _, algorithm := range []quota.Algorithm{quota.TokenBucket, quota.LeakyBucket} {
		w := newWorld(t, 100, quota.Minute, 100)
		w.algorithm = algorithm
		var tickets []*leasing.Ticket
		for stream, cost := range []int64{1, 2, 2, 1, 60} {
			need := w.need(1, cost)
			need.Optimistic, need.Strict = algorithm == quota.TokenBucket, true
			tickets = append(tickets, &leasing.Ticket{Stream: uint32(stream + 1), Need: need})
			if !w.client.Ask(w.now, tickets[stream]) {
				t.Fatal("turned away")
			}
			w.client.Flush(w.now)
		}
		debt := func(tokens int64) int64 { return w.params.UnitsFor(tokens) }
		w.reply(wire.LeaseAnswer{Waiting: 1, Debt: debt(46)})
		if len(w.calls) != 1 || len(w.calls[0].request.Items) != 3 {
			t.Fatalf("%v: %+v", algorithm, w.calls)
		}
		w.reply(wire.LeaseAnswer{Waiting: 2, Debt: debt(50), Delay: 46 * 600 * quota.Millisecond},
			wire.LeaseAnswer{Waiting: 1, Debt: debt(51), Delay: 50 * 600 * quota.Millisecond},
			wire.LeaseAnswer{NotBefore: 11 * 600 * quota.Millisecond, Debt: debt(51)})
		outcomes(t, tickets, leasing.Granted, leasing.Granted, leasing.Granted, leasing.Granted, leasing.Refused)
		if delays := tickets[2].Delay < tickets[3].Delay; delays != (algorithm == quota.LeakyBucket) {
			t.Errorf("%v: delayed for %d and %d", algorithm, tickets[2].Delay, tickets[3].Delay)
		}
		if w.client.Waiting() != 0 || len(w.calls) != 0 {
			t.Errorf("%v: %d wait, %d calls", algorithm, w.client.Waiting(), len(w.calls))
		}
	}
}
