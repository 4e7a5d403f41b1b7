package storetest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// settling is an ask that reserves, of a sliding log of five in 15 minutes.
func settling(t *testing.T, a quota.Algorithm, units, waiting, cost int64, name uint64) leases.Item {
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

// testSettlements plays settlements of each algorithm.
func testSettlements(t *testing.T, s *Instance) {
	playSettlements(t, s, quota.TokenBucket, false, lease.Ledger{})
	playSettlements(t, s, quota.TokenBucket, true, lease.Ledger{})
	for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingLog} {
		playSettlements(t, s, a, false, lease.WindowLedger{})
	}
}

// reserved is a reservation in the store, and what the ledger in Go knows of it.
type reserved struct {
	name  leases.Reservation
	taken quota.Reservation
}

// playSettlements plays random grants and settlements, some doubled, late or of names that no
// reservation has, and compares each answer with a ledger that settles in Go. With own, callers
// bring figures of their own.
func playSettlements[L lease.Counted[L]](t *testing.T, s *Instance, a quota.Algorithm, own bool, ledger L) {
	ctx, seed := testContext(t), rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	item := settling(t, a, 60, 0, 1, 0)
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
		switch n := r.IntN(10); {
		case n < 5:
			it := item
			if own {
				it.Ask.Params = ownFigures(t, r, it.Ask.Params)
			}
			it.Ask.Waiting, it.Ask.Cost, it.Ask.Reserved = 1+r.Int64N(3), 1+r.Int64N(9), r.Uint64()|1
			got := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{it}))[0]
			var want lease.Grant
			ledger, want = ledger.Grant(now, it.Ask)
			got.Changed, want.Changed = false, false
			if got != want {
				t.Fatalf("seed %d, %v, step %d: %+v, want %+v", seed, a, step, got, want)
			}
			taken := ledger.Reservation(it.Ask)
			for nth := int64(1); nth <= got.Waiting; nth++ {
				name := leases.Reservation{Bucket: it.Bucket, Name: it.Ask.Reserved, Nth: nth}
				open = append(open, reserved{name, taken})
			}
		case n < 9 && len(open) > 0:
			i := r.IntN(len(open))
			one := open[i]
			open = append(open[:i], open[i+1:]...)
			over = append(over, one)
			actual := r.Int64N(14)
			known := must[bool](t)(s.Settle(ctx, one.name, item.Ask, actual))
			if !known && ledger.Counts(one.taken) > now {
				t.Fatalf("seed %d, %v, step %d: a reservation that counts is not known", seed, a, step)
			}
			if known {
				ledger, _ = ledger.Settle(now, item.Ask, one.taken, actual)
			}
		case len(over) > 0:
			again := over[r.IntN(len(over))].name
			if r.IntN(2) == 0 {
				again.Name++
			}
			if must[bool](t)(s.Settle(ctx, again, item.Ask, r.Int64N(14))) {
				t.Fatalf("seed %d, %v, step %d: settled twice", seed, a, step)
			}
		}
	}
	if len(over) < 50 {
		t.Errorf("seed %d, %v: only %d settlements", seed, a, len(over))
	}
}

// ownFigures are mostly those of the limit, and at times lower ones.
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

// testSettledOnce has many settle the same reservations at once, while others are granted.
func testSettledOnce(t *testing.T, s *Instance) {
	ctx := testContext(t)
	it := settling(t, quota.SlidingLog, 20, 10, 1, 99)
	if g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{it}))[0]; g.Waiting != 10 {
		t.Fatalf("%+v", g)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	settled, others := 0, int64(0)
	for i := range 8 {
		wait.Go(func() {
			for nth := range int64(10) {
				if i%4 == 0 {
					other := settling(t, quota.SlidingLog, 20, 1, 1, uint64(1000+100*int64(i)+nth))
					g, err := s.Grant(ctx, []leases.Item{other})
					if err != nil {
						t.Error(err)
						continue
					}
					mu.Lock()
					others += g[0].Waiting
					mu.Unlock()
				}
				known, err := s.Settle(ctx, leases.Reservation{Bucket: it.Bucket, Name: 99, Nth: nth + 1}, it.Ask, 0)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if known {
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
	probe := settling(t, quota.SlidingLog, 20, 0, 1, 0)
	if g := must[[]lease.Grant](t)(s.Grant(ctx, []leases.Item{probe}))[0]; g.Level != 20-others {
		t.Errorf("%d of 20 are left beside %d that were granted and not settled", g.Level, others)
	}
}
