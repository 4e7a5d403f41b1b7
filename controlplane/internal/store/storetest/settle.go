package storetest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// reservingItem returns an item of a limit of units in 15 minutes, by the algorithm a. Each of its
// waiting requests reserves cost tokens under the name; a name of 0 reserves nothing.
func reservingItem(t *testing.T, a quota.Algorithm, units, waiting, cost int64, name uint64) leases.Item {
	length := 15 * quota.Minute
	var w quota.Windows
	var err error
	if a.Windowed() {
		if w, err = quota.NewWindows(a, units, length, 10); err != nil {
			t.Fatal(err)
		}
	}
	p, err := quota.NewParams(units, length, units)
	if err != nil {
		t.Fatal(err)
	}
	return leases.Item{Bucket: keyhash.Key{1, 2, 3}, Ask: lease.Ask{
		Params: p, Windows: w, Version: 7, Waiting: waiting, Cost: cost, Deadline: lease.Deadline, Reserved: name,
		Owing: true,
	}}
}

// settle settles a reservation, and reports whether the store knew it.
func (s *Instance) settle(t *testing.T, it leases.Item, one leases.Settlement) bool {
	t.Helper()
	return s.settlement(t, it, one).Waiting == 1
}

// settlement settles a reservation and returns the result.
func (s *Instance) settlement(t *testing.T, it leases.Item, one leases.Settlement) lease.Grant {
	t.Helper()
	it.Ask.Waiting, it.Ask.Reserved, it.Kind, it.Settles = 0, 0, wire.KindSettle, one
	return s.one(t, it)
}

// testSettlements plays settlements of each algorithm.
func testSettlements(t *testing.T, s *Instance) {
	playSettlements(t, s, quota.TokenBucket, false, lease.Ledger{})
	playSettlements(t, s, quota.TokenBucket, true, lease.Ledger{})
	for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
		playSettlements(t, s, a, false, lease.WindowLedger{})
	}
}

// reserved is a reservation in the store, and the same reservation of the ledger in Go.
type reserved struct {
	name  leases.Settlement
	taken quota.Reservation
	// until is the last time at which it can be settled.
	until quota.Instant
}

// adjusted is a ledger that an operator can change.
type adjusted[L any] interface {
	lease.Counted[L]
	Adjust(now quota.Instant, ask lease.Ask, c lease.Change) (L, lease.Holding)
}

// playSettlements plays random grants and settlements, changes of operators and a restart. Some
// settlements are doubled, late or of unknown names. It compares each answer with a ledger in Go.
// If own is true, callers bring their own limits.
func playSettlements[L adjusted[L]](t *testing.T, s *Instance, a quota.Algorithm, own bool, ledger L) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	item := reservingItem(t, a, 60, 0, 1, 0)
	item.Bucket[5] = byte(a)
	now := Base + quota.Instant(a)*quota.Instant(quota.Day)
	if own {
		item.Bucket[6], item.Ask.Most = 1, item.Ask.Params
		now += quota.Instant(12 * quota.Hour)
	}
	var open, over []reserved
	for step := range 400 {
		now += quota.Instant(r.Int64N(int64(quota.Minute)))
		s.SetClock(now)
		n := r.IntN(11)
		if step == 200 {
			s.Restart(t)
			s.SetClock(now)
			// A full bucket is not stored, so only a grant shows the store the caller's own limit
			// again.
			n = 0
		}
		switch {
		case n == 10:
			change := lease.Change{Reset: r.IntN(2) == 0, Give: 1 + r.Int64N(20)}
			var got, want lease.Holding
			if ledger, got, want = adjustAs(t, s, item, now, change, ledger); got != want {
				t.Fatalf("seed %d, %v, step %d: adjusted to %+v, want %+v", seed, a, step, got, want)
			}
		case n < 5:
			it := item
			if own {
				it.Ask.Params = ownFigures(t, r, it.Ask.Params)
			}
			it.Ask.Waiting, it.Ask.Cost, it.Ask.Reserved = 1+r.Int64N(3), 1+r.Int64N(9), r.Uint64()|1
			var got, want lease.Grant
			if ledger, got, want = grantAs(t, s, it, now, ledger); got != want {
				t.Fatalf("seed %d, %v, step %d: %+v, want %+v", seed, a, step, got, want)
			}
			taken := ledger.Reservation(it.Ask)
			for nth := int64(1); nth <= got.Waiting; nth++ {
				name := leases.Settlement{Name: it.Ask.Reserved, Nth: nth}
				open = append(open, reserved{name, taken, ledger.Counts(taken)})
			}
		case n < 9 && len(open) > 0:
			i := r.IntN(len(open))
			one := open[i]
			open, over = append(open[:i], open[i+1:]...), append(over, one)
			one.name.Actual = r.Int64N(14)
			ledger = settleAs(t, s, item, now, one, ledger)
		case len(over) > 0:
			if settleAgain(t, s, item, r, over) {
				t.Fatalf("seed %d, %v, step %d: settled twice", seed, a, step)
			}
		}
	}
	if len(over) < 50 {
		t.Errorf("seed %d, %v: only %d settlements", seed, a, len(over))
	}
}

// settleAgain settles a reservation that is over, or one with another name, and reports whether the
// store accepted it.
func settleAgain(t *testing.T, s *Instance, item leases.Item, r *rand.Rand, over []reserved) bool {
	again := over[r.IntN(len(over))].name
	if r.IntN(2) == 0 {
		again.Name++
	}
	again.Actual = r.Int64N(14)
	return s.settle(t, item, again)
}

// grantAs grants from a bucket in the store and in a ledger, and returns both answers.
func grantAs[L adjusted[L]](
	t *testing.T, s *Instance, it leases.Item, now quota.Instant, ledger L,
) (L, lease.Grant, lease.Grant) {
	got := must[[]lease.Grant](t)(s.Grant(testContext(t), []leases.Item{it}))[0]
	ledger, want := ledger.Grant(now, it.Ask)
	got.Changed, want.Changed = false, false
	return ledger, got, want
}

// adjustAs changes a bucket as an operator in the store and in a ledger, and returns both answers.
func adjustAs[L adjusted[L]](
	t *testing.T, s *Instance, item leases.Item, now quota.Instant, c lease.Change, ledger L,
) (after L, got, want lease.Holding) {
	t.Helper()
	entry := audit.Entry{Action: "key.change"}
	got = must[lease.Holding](t)(s.Adjust(testContext(t), leases.Item{Bucket: item.Bucket, Ask: item.Ask}, c, entry))
	after, want = ledger.Adjust(now, item.Ask, c)
	return after, got, want
}

// settleAs settles a reservation in the store and in a ledger.
func settleAs[L lease.Counted[L]](
	t *testing.T, s *Instance, item leases.Item, now quota.Instant, one reserved, ledger L,
) L {
	t.Helper()
	got := s.settlement(t, item, one.name)
	if got.Waiting == 0 {
		if one.until > now {
			t.Fatal("a reservation that counts is not known")
		}
		return ledger
	}
	ledger, back := ledger.Settle(now, item.Ask, one.taken, one.name.Actual)
	want := leases.SettledGrant(back)
	if off := got.Level - want.Level; got.Keep != want.Keep || off < -1 || off > 1 { // Lua divides in doubles.
		t.Fatalf("settled as %+v, want %+v", got, want)
	}
	return ledger
}

// ownFigures returns mostly the limit itself, and sometimes a lower limit.
func ownFigures(t *testing.T, r *rand.Rand, p quota.Params) quota.Params {
	if r.IntN(4) > 0 {
		return p
	}
	own, err := quota.NewParams(1+r.Int64N(60), 15*quota.Minute, 1+r.Int64N(60))
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// testSettledOnce settles the same reservations from many goroutines at once, while the store
// grants tokens to other requests.
func testSettledOnce(t *testing.T, s *Instance) {
	ctx := testContext(t)
	it := reservingItem(t, quota.SlidingLog, 20, 10, 1, 99)
	if g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{it}))[0]; g.Waiting != 10 {
		t.Fatalf("%+v", g)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	settled, others := 0, int64(0)
	// Each goroutine settles all ten reservations, and two of them also ask for other tokens.
	for i := range 8 {
		wait.Go(func() {
			for nth := range int64(10) {
				if i%4 == 0 {
					other := reservingItem(t, quota.SlidingLog, 20, 1, 1, uint64(1000+100*int64(i)+nth))
					g, err := s.Grant(ctx, []leases.Item{other})
					if err != nil {
						t.Error(err)
						continue
					}
					mu.Lock()
					others += g[0].Waiting
					mu.Unlock()
				}
				one := it
				one.Ask.Waiting, one.Kind = 0, wire.KindSettle
				one.Settles = leases.Settlement{Name: 99, Nth: nth + 1}
				g, err := s.Grant(ctx, []leases.Item{one})
				if err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				if g[0].Waiting == 1 {
					settled++
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if settled != 10 {
		t.Errorf("%d settlements of ten reservations", settled)
	}
	probe := reservingItem(t, quota.SlidingLog, 20, 0, 1, 0)
	if g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{probe}))[0]; g.Level != 20-others {
		t.Errorf("the bucket of 20 has %d tokens after grants of %d tokens that are not settled", g.Level, others)
	}
}

// testSettlementsTravelTogether sends one call with settlements and requests for tokens of two
// buckets. The store answers the items in their order, as if each of them came alone.
func testSettlementsTravelTogether(t *testing.T, s *Instance) {
	var call []leases.Item
	for i, a := range []quota.Algorithm{quota.TokenBucket, quota.SlidingLog} {
		// Two requests reserve 3 tokens each: the bucket of 6 is empty.
		it := reservingItem(t, a, 6, 2, 3, 500)
		it.Bucket[5] = byte(i)
		if g := s.one(t, it); g.Waiting != 2 {
			t.Fatalf("%v: %+v", a, g)
		}
		// The first request costs 1 and gives back 2 tokens, so 2 of 3 other requests get a token.
		// The second request costs 4, a token more than it reserved.
		ask := it
		ask.Ask.Waiting, ask.Ask.Cost, ask.Ask.Reserved = 3, 1, 501
		it.Ask.Waiting, it.Ask.Reserved, it.Kind = 0, 0, wire.KindSettle
		first, again, second, unknown := it, it, it, it
		first.Settles = leases.Settlement{Name: 500, Nth: 1, Actual: 1}
		again.Settles = first.Settles
		second.Settles = leases.Settlement{Name: 500, Nth: 2, Actual: 4}
		unknown.Settles = leases.Settlement{Name: 500, Nth: 3}
		call = append(call, first, again, ask, second, unknown)
	}
	got := must[[]lease.Grant](t)(s.Grant(testContext(t), call))
	// A settlement is answered with 1 if the store knew the reservation, and with 0 if it has no
	// such reservation any more. The requests for tokens are answered with the admitted requests.
	for i, want := range []int64{1, 0, 2, 1, 0, 1, 0, 2, 1, 0} {
		if got[i].Waiting != want {
			t.Errorf("item %d: %+v, want %d", i, got[i], want)
		}
	}
	// Each bucket owes a token, so it admits no request.
	for _, i := range []int{2, 7} {
		next := call[i]
		next.Ask.Waiting, next.Ask.Reserved = 1, 0
		if g := s.one(t, next); g.Waiting != 0 || g.Level != 0 {
			t.Errorf("%v: a bucket that owes a token answers %+v", next.Ask.Windows.Algorithm, g)
		}
	}
}

// testLostReservations loses the store's state between a reservation and its settlement. The
// settlement must not give tokens back that were used later.
func testLostReservations(t *testing.T, s *Instance) {
	if s.Lose == nil {
		t.Skip("this store loses nothing")
	}
	ctx, now := testContext(t), Base
	algorithms := []quota.Algorithm{quota.TokenBucket, quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog}
	items := make([]leases.Item, len(algorithms))
	for i, a := range algorithms {
		items[i] = reservingItem(t, a, 60, 2, 10, uint64(700+i))
		items[i].Bucket[7] = byte(i)
		s.SetClock(now)
		if g := s.one(t, items[i]); g.Waiting != 2 {
			t.Fatalf("%v: %+v", a, g)
		}
	}
	now += quota.Instant(quota.Second)
	s.SetClock(now)
	s.Lose(t, now)
	now += quota.Instant(quota.Second)
	s.SetClock(now)
	for i, a := range algorithms {
		later := items[i]
		later.Ask.Waiting, later.Ask.Cost, later.Ask.Reserved = 1, 7, 0
		g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{later}))[0]
		if g.Waiting != 1 || g.Level != 23 {
			t.Fatalf("%v: after the loss %+v, want half of 60 less 7", a, g)
		}
		for nth := int64(1); nth <= 2; nth++ {
			s.settlement(t, items[i], leases.Settlement{Name: uint64(700 + i), Nth: nth})
		}
		look := later
		look.Ask.Waiting = 0
		if g := s.one(t, look); g.Level != 23 {
			t.Errorf("%v: %d are left after settlements of lost reservations, want 23", a, g.Level)
		}
	}
}

// testDraftsAreSettled settles a bucket that a rollout counts twice: both ledgers change.
func testDraftsAreSettled(t *testing.T, s *Instance) {
	for i, a := range []quota.Algorithm{quota.TokenBucket, quota.FixedWindow, quota.SlidingWindow} {
		it := reservingItem(t, a, 6, 1, 3, 600)
		it.Bucket[6] = byte(i)
		draft := reservingItem(t, a, 9, 0, 1, 0).Ask
		draft.Version = it.Ask.Version + 1<<lease.EpochBits
		it.Twin = &draft
		if g := s.one(t, it); g.Waiting != 1 {
			t.Fatalf("%v: %+v", a, g)
		}
		settles := it
		settles.Twin = nil
		if !s.settle(t, settles, leases.Settlement{Name: 600, Nth: 1, Actual: 2}) {
			t.Fatalf("%v: not known", a)
		}
		main := it
		main.Ask.Waiting, main.Ask.Reserved = 0, 0
		twin := main
		twin.Ask, twin.Twin, twin.Draft = draft, &main.Ask, true
		if g := s.one(t, main); g.Level != 4 {
			t.Errorf("%v: %+v, want 4", a, g)
		}
		if g := s.one(t, twin); g.Level != 7 {
			t.Errorf("%v: the draft has %+v, want 7", a, g)
		}
	}
}
