package leases

import (
	"context"
	"sync"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Reservation names what a request has taken of a bucket before its cost was known: the Nth request
// of the ask whose Reserved is Name.
type Reservation struct {
	Bucket keyhash.Key
	Name   uint64
	Nth    int64
}

// Settler is the part of a store that corrects reservations.
type Settler interface {
	// Settle makes a reservation cost what its request has cost, as Settle of its ledger does,
	// at the store's own time, and forgets it. So it happens once, however often it is called for.
	// It reports false for a reservation that the store does not know: it was settled before, or it
	// counts no more, or the store has lost it.
	Settle(ctx context.Context, r Reservation, ask lease.Ask, actual int64) (known bool, err error)
}

// settlement is an item that settles a reservation, by the figures of its limit.
type settlement struct {
	index int
	ask   lease.Ask
	err   error
}

// settle answers the items that settle reservations, and returns the others. The error is that of
// the store if it answered no item of a request with nothing else. Settlements of one bucket would
// get in each other's way, so only those of several are under way at once.
func (s *Service) settle(ctx context.Context, r *resolver, all []int) (others []int, err error) {
	answered := 0
	var buckets map[keyhash.Key][]*settlement // Most requests settle nothing, and need none.
	for _, i := range all {
		it := &r.items[i]
		if it.Nth == 0 {
			others = append(others, i)
			continue
		}
		by, ok := r.effective(it, r.deciding)
		if !ok || !settles(by.policy.Mode) || s.config.Settler == nil {
			answered++
			continue
		}
		by.claim(it.Quota, it.Burst)
		if buckets == nil {
			buckets = map[keyhash.Key][]*settlement{}
		}
		one := &settlement{index: i, ask: s.baseAsk(it.Bucket, by, r.deciding.Version.Number)}
		buckets[it.Bucket] = append(buckets[it.Bucket], one)
	}
	if len(buckets) == 0 {
		return others, nil
	}
	s.settleBuckets(ctx, r, buckets)
	for _, of := range buckets {
		for _, one := range of {
			if one.err != nil {
				r.answers[one.index], err = unavailable(0), one.err
				continue
			}
			r.answers[one.index] = wire.LeaseAnswer{State: wire.ItemGranted}
			answered++
		}
	}
	if answered > 0 || len(others) > 0 {
		err = nil
	}
	return others, err
}

// settleBuckets settles buckets side by side, and what is of one bucket in its order.
func (s *Service) settleBuckets(ctx context.Context, r *resolver, buckets map[keyhash.Key][]*settlement) {
	var wait sync.WaitGroup
	for _, of := range buckets {
		wait.Go(func() {
			for _, one := range of {
				it := &r.items[one.index]
				name := Reservation{it.Bucket, it.Reserved, it.Nth}
				_, one.err = s.config.Settler.Settle(ctx, name, one.ask, it.Actual)
			}
		})
	}
	wait.Wait()
}

// settles reports whether the control plane keeps what requests of a mode have reserved. Whether
// costs of the policy still are known later does not matter: what was reserved was taken.
func settles(mode policy.Mode) bool { return mode == policy.ModeStrict || mode == policy.ModeLeased }
