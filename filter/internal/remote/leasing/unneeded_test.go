package leasing_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// lends is a world of 100 an hour, whose leases last 30 s, that has 6 tokens of a bucket in hand.
func lends(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 100, quota.Hour, 100)
	w.names = true
	w.client.Prefetch(w.need(1, 1), 12, 0, [2]lease.Spent{})
	w.join(t, 1, 1)
	w.answer(w.now)
	if held := w.held(1); held != 6 {
		t.Fatalf("%d in hand", held)
	}
	return w
}

// looking is the change that only looks at a credit.
type looking struct{ credit lease.Credit }

func (l *looking) Apply(e *bucketstore.Entry) bool {
	l.credit = e.Credit
	return false
}

// held is how many tokens of a bucket are in hand.
func (w *world) held(bucket byte) int64 {
	l := &looking{}
	if err := w.store.Update(bucketstore.Leased, keyhash.Key{bucket}, w.now, l); err != nil {
		w.t.Fatal(err)
	}
	return l.credit.Available(w.now)
}

// left is the control plane's level of a bucket.
func (w *world) left(bucket byte) int64 {
	_, g := w.ledgers[keyhash.Key{bucket}].Look(w.now, lease.Ask{Params: w.plane.params, Version: 1, Cost: 1})
	return g.Level
}

// tickUntil ticks each 10 ms while there is something to do, until a call leaves.
func (w *world) tickUntil(end quota.Instant) bool {
	for ; w.now < end; w.now += 10 * ms {
		if w.client.NextDue(w.now) <= w.now {
			if w.client.Tick(w.now); len(w.calls) > 0 {
				return true
			}
		}
	}
	return false
}

// wait lets a request wait for a call. It is strict, because other requests ask for tokens to keep
// meanwhile, in calls that do not wait.
func (w *world) wait(need leasing.Need) {
	w.t.Helper()
	w.stream++
	need.Strict = true
	if !w.client.Ask(w.now, &leasing.Ticket{Stream: w.stream, Need: need}) {
		w.t.Fatal("turned away")
	}
}

// A bucket that is not touched for a quarter of a lease gives all of its tokens back, in one call,
// with which tokens were used. It does nothing before, and nothing after.
func TestTokensOfABucketAtRestGoBack(t *testing.T) {
	w := lends(t)
	if s := w.spend(1, 2); s.State != leasing.Ready {
		t.Fatal("the tokens in hand are not ready")
	}
	rested := w.now + quota.Instant(lease.BackOff(w.plane.params))
	if w.tickUntil(rested) {
		t.Fatalf("a call left %d ms before the bucket had rested", (rested-w.now)/ms)
	}
	if !w.tickUntil(rested + 20*ms) {
		t.Fatal("nothing went back")
	}
	it := w.calls[0].request.Items[0]
	if len(w.calls[0].request.Items) != 1 || it.Returned != 4 || it.Used != 2 || w.held(1) != 0 {
		t.Fatalf("%+v went back, %d are in hand", w.calls[0].request.Items, w.held(1))
	}
	if s := w.spend(1, 0); s.State != leasing.Ready || s.Level != 97 ||
		s.FullAt > w.now+quota.Instant(w.need(1, 1).Params.Window()*3/100)+60*ms {
		t.Errorf("a client would hear of %d left, full in %d ms", s.Level, (s.FullAt-w.now)/ms)
	}
	w.answer(w.now)
	if w.left(1) != 97 || w.client.Stats.Returned != 4 {
		t.Errorf("%d are left, %d returned", w.left(1), w.client.Stats.Returned)
	}
	if w.tickUntil(w.now+quota.Instant(quota.Minute)) || w.client.NextDue(w.now) != quota.Forever {
		t.Error("there was more to do")
	}
}

// The only node keeps its tokens of a bucket at rest for the next burst, and gives the rest back
// before its lease ends, or with a call that leaves anyway.
func TestTheOnlyNodeKeepsItsTokensForTheNextBurst(t *testing.T) {
	for _, rides := range []bool{false, true} {
		w := lends(t)
		w.alone = true
		ends := w.now + quota.Instant(lease.TTL(w.plane.params))
		w.join(t, 2, 1)
		w.answer(w.now)
		if rides {
			w.now = ends - 20_000*ms
			if w.join(t, 3, 1); len(w.calls[0].request.Items) != 2 || w.held(1) != 0 {
				t.Errorf("%+v left, %d are in hand", w.calls[0].request.Items, w.held(1))
			}
			continue
		}
		if w.tickUntil(ends - 1000*ms) {
			t.Fatalf("a call left %d s before the end", (ends-w.now)/ms/1000)
		}
		if s := w.spend(1, 5); s.State != leasing.Ready {
			t.Error("the next burst finds nothing")
		}
		if !w.tickUntil(ends) || w.held(1) != 0 {
			t.Errorf("%d are in hand at the end", w.held(1))
		}
		if it := w.calls[0].request.Items[0]; it.Returned != 1 {
			t.Errorf("%+v", it)
		}
		w.answer(w.now)
		if w.left(1) != 94 {
			t.Errorf("%d are left", w.left(1))
		}
	}
}

// Tokens of a bucket that rests go back with a call that leaves anyway, from half of that time on.
func TestReturnsRideAlong(t *testing.T) {
	for _, rides := range []bool{false, true} {
		w := lends(t)
		w.now += quota.Instant(lease.BackOff(w.plane.params))/2 - ms
		if rides {
			w.now += 2 * ms
		}
		w.join(t, 2, 1)
		items := w.calls[0].request.Items
		if rode := len(items) == 2 && items[1].Returned == 6; rode != rides || !rides && len(items) != 1 {
			t.Errorf("%+v left, the bucket rests %v", items, rides)
		}
	}
}

// A request that costs more than the tokens in hand gives these back before it asks: it gets the
// same tokens as from a single bucket.
func TestAnExpensiveRequestGivesBackTokensInHand(t *testing.T) {
	w := lends(t)
	ticket := w.join(t, 1, 90)
	w.answer(w.now)
	if ticket.Outcome != leasing.Granted || w.left(1) != 9 || w.held(1) != 0 {
		t.Errorf("%v, %d are left and %d in hand", ticket.Outcome, w.left(1), w.held(1))
	}
}

// A request for several buckets takes no tokens in hand, which may have come since it began to
// wait: it gives them back before it asks, so that it is not refused while they are there.
func TestARequestForSeveralBucketsGivesBackTokensInHand(t *testing.T) {
	w := newWorld(t, 3, quota.Hour, 3)
	w.names, w.alone = true, true
	for bucket := range byte(2) {
		w.client.Prefetch(w.need(bucket+1, 1), 1, 0, [2]lease.Spent{})
		w.join(t, bucket+1, 1)
		w.answer(w.now)
		w.join(t, bucket+1, 1)
		w.answer(w.now)
		if w.left(bucket+1) != 0 || w.held(bucket+1) != 1 {
			t.Fatalf("%d are left, %d in hand", w.left(bucket+1), w.held(bucket+1))
		}
	}
	both := []*leasing.Ticket{{Stream: 9, Need: w.need(1, 1)}, {Stream: 9, Need: w.need(2, 1)}}
	if !w.client.Ask(w.now, both...) {
		t.Fatal("turned away")
	}
	w.client.Flush(w.now)
	w.answer(w.now)
	for i, ticket := range both {
		if ticket.Outcome != leasing.Granted || w.held(byte(i+1)) != 0 {
			t.Errorf("bucket %d: %v, %d in hand, %d left", i+1, ticket.Outcome, w.held(byte(i+1)), w.left(byte(i+1)))
		}
	}
}

// Tokens of a request whose client has gone go back before their lease ends, unless another takes
// them.
func TestTokensOfAGoneClientGoBack(t *testing.T) {
	for _, taken := range []bool{false, true} {
		w := newWorld(t, 100, quota.Hour, 100)
		w.names = true
		w.join(t, 1, 1)
		w.client.Cancel(w.stream)
		w.answer(w.now)
		if w.left(1) != 99 {
			t.Fatalf("%d are left", w.left(1))
		}
		if taken && w.spend(1, 1).State != leasing.Ready {
			t.Error("the next request finds no token")
		}
		if went := w.tickUntil(w.now + 100*ms); went == taken {
			t.Errorf("taken %v: went back %v", taken, went)
		} else if went {
			w.answer(w.now)
		}
		if want := map[bool]int64{false: 100, true: 99}[taken]; w.left(1) != want {
			t.Errorf("taken %v: %d are left", taken, w.left(1))
		}
	}
}

// A return whose call had no answer leaves in the next call, under the same name, so that the
// control plane takes it once. It does so until its lease is over, and no longer.
func TestALostReturnIsSentAgain(t *testing.T) {
	for name, arrives := range map[string]bool{"the call is lost": false, "its answer is": true} {
		w := lends(t)
		ends := w.now + quota.Instant(lease.TTL(w.plane.params))
		w.tickUntil(ends)
		first := w.calls[0].request.Items[0]
		for range 2 {
			lost := w.calls[0]
			if arrives {
				w.takeBack(w.now, &lost.request.Items[0])
			}
			w.calls = nil
			lost.done(504, nil)
			if !w.tickUntil(w.now + 20*ms) {
				t.Fatal(name + ": it is not sent again")
			}
			if again := w.calls[0].request.Items; len(again) != 1 || again[0] != first {
				t.Fatalf("%s: %+v became %+v", name, first, again)
			}
		}
		w.answer(w.now)
		if got := w.client.Stats; got.Returned != 6 || got.Lapsed != 0 || w.left(1) != 99 {
			t.Errorf("%s: %d returned, %d lapsed, %d left", name, got.Returned, got.Lapsed, w.left(1))
		}
		if w.tickUntil(w.now + quota.Instant(quota.Minute)) {
			t.Errorf("%s: %+v left", name, w.calls[0].request.Items)
		}
	}
	w := lends(t)
	w.tickUntil(w.now + quota.Instant(quota.Minute))
	lost := w.calls[0]
	w.calls = nil
	w.now += quota.Instant(lease.TTL(w.plane.params))
	lost.done(504, nil)
	w.tickUntil(w.now + quota.Instant(quota.Second)) // It finds out whether it is answered.
	if w.client.Stats.Lapsed != 6 || w.calls[0].request.Items[0].Term != 0 {
		t.Errorf("%d lapsed, %+v left", w.client.Stats.Lapsed, w.calls[0].request.Items)
	}
}

// Requests that wait for a call delay no return to another bucket, also if the return to their own
// bucket is before it. Their call takes that return along.
func TestALostReturnWaitsForNoOtherBucket(t *testing.T) {
	w := lends(t)
	w.client.Prefetch(w.need(2, 1), 12, 0, [2]lease.Spent{})
	w.join(t, 2, 1)
	w.answer(w.now)
	w.tickUntil(w.now + quota.Instant(lease.TTL(w.plane.params)))
	lost := w.calls[0]
	back := lost.request.Items
	if len(back) != 2 || back[0].Bucket != (keyhash.Key{1}) || back[1].Bucket != (keyhash.Key{2}) {
		t.Fatalf("%+v went back", back)
	}
	w.join(t, 3, 1)
	w.wait(w.need(1, 1))
	w.calls = w.calls[1:]
	if lost.done(504, nil); len(w.calls) != 1 || w.client.Waiting() != 2 {
		t.Fatalf("%d requests wait, after %+v", w.client.Waiting(), w.calls)
	}
	if w.client.Tick(w.now); len(w.calls) != 2 {
		t.Fatalf("after the tick %+v", w.calls)
	}
	if items := w.calls[1].request.Items; len(items) != 1 || items[0] != back[1] {
		t.Errorf("%+v left, want %+v", items, back[1])
	}
	w.answer(w.now)
	w.client.Flush(w.now)
	if items := w.calls[len(w.calls)-1].request.Items; len(items) != 2 || items[0] != back[0] || items[1].Waiting != 1 {
		t.Errorf("%+v left with the request, want %+v before it", items, back[0])
	}
}

// Requests of a policy set delay no return of another policy set, because their call cannot take
// the return along.
func TestALostReturnWaitsForNoOtherPolicySet(t *testing.T) {
	for _, version := range []uint64{1, 2} {
		w := lends(t)
		w.tickUntil(w.now + quota.Instant(lease.TTL(w.plane.params)))
		lost := w.calls[0]
		w.join(t, 3, 1)
		need := w.need(1, 1)
		need.Version = version
		w.wait(need)
		w.calls = w.calls[1:]
		if lost.done(504, nil); len(w.calls) != 1 || w.client.Waiting() != 2 {
			t.Fatalf("%d requests wait, after %+v", w.client.Waiting(), w.calls)
		}
		w.client.Tick(w.now)
		if left := len(w.calls) == 2; left != (version == 2) {
			t.Errorf("a request of policy set %d waits, and after the tick there are %+v", version, w.calls)
		} else if left && w.calls[1].request.Items[0] != lost.request.Items[0] {
			t.Errorf("%+v left, want %+v", w.calls[1].request.Items, lost.request.Items)
		}
	}
}

// While the control plane does not answer nothing is given back: the tokens serve requests.
func TestNothingGoesBackInAnOutage(t *testing.T) {
	w := lends(t)
	w.client.Health.Hear(w.now + 1)
	if w.tickUntil(w.now+10_000*ms) || w.held(1) != 6 {
		t.Errorf("%d calls, %d in hand", len(w.calls), w.held(1))
	}
}

// When a plugin context is gone, the next context in its VM gives back its tokens in hand and sends
// its unsent messages.
func TestTheNextContextGivesBack(t *testing.T) {
	w := lends(t)
	next := worker(t, w.data, w.clock, w.plane)
	next.client.TakeOver(w.client)
	if held := next.held(1); held != 6 {
		t.Fatalf("%d in hand", held)
	}
	if !next.tickUntil(w.now+10_000*ms) || next.calls[0].request.Items[0].Returned != 6 {
		t.Errorf("%+v left", next.calls)
	}
}

// After a late call tokens still go back, when no request waits in a call.
func TestTokensGoBackAfterALateCall(t *testing.T) {
	w := lends(t)
	w.join(t, 2, 1)
	late := w.calls[0]
	w.now += quota.Instant(lease.Deadline)
	w.client.EndLate(w.now)
	late.done(504, nil)
	w.calls = nil
	if !w.tickUntil(w.now+10_000*ms) || w.calls[0].request.Items[0].Returned != 6 {
		t.Errorf("%+v left", w.calls)
	}
}
