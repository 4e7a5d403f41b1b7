package storetest

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// testLostBuckets checks that after a store has lost its buckets, none of them grants more than a
// half too much in any interval, and none grants less than a half for longer than it may have been
// in use.
func testLostBuckets(t *testing.T, s *Instance) {
	if s.Lose == nil {
		t.Log("this store is spared a loss")
		return
	}
	const burst, window = 100, quota.Hour
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	now := Base
	for round := range 6 {
		for a := range quota.AlgorithmCount {
			bucket := keyhash.Key{11, byte(a), byte(round)}
			ask := askOf(t, quota.Algorithm(a), burst, window)
			lost := quota.Instant(0)
			take := func(at quota.Instant, n int64) int64 {
				s.SetClock(at)
				ask.Waiting = n
				g := s.one(t, leases.Item{Bucket: bucket, Ask: ask})
				s.checkDoubts(t, at, lost, leases.Item{Bucket: bucket, Ask: ask}, g)
				return g.Waiting
			}
			// Use some at the begin of a window and lose it. Ask for all, at once and then again
			// and again until the window ends.
			now += quota.Instant(window) - now%quota.Instant(window)
			end := now + quota.Instant(window)
			before := take(now, r.Int64N(burst+1))
			now += quota.Instant(r.Int64N(int64(quota.Minute)))
			s.SetClock(now)
			s.Lose(t, now)
			lost = now
			first := take(now, burst)
			if first < burst/2 {
				t.Errorf("seed %d: %v gives %d at once after a loss, want a half", seed, quota.Algorithm(a), first)
			}
			passed := before + first
			for now += quota.Instant(quota.Minute); now < end; {
				passed += take(now, burst)
				now += quota.Instant(r.Int64N(int64(10 * quota.Minute)))
			}
			most := int64(burst + burst/2)
			if !quota.Algorithm(a).Windowed() {
				most += burst // It is earned in a window.
			}
			if passed > most {
				t.Errorf("seed %d: %v passes %d around a loss, at most %d may", seed, quota.Algorithm(a), passed, most)
			}
			// After as long a rest as any bucket may have been in use, it is like a new bucket.
			now += 2*quota.Instant(window) + 2*quota.Instant(lease.TTL(ask.Params))
			if last := take(now, burst); last < burst {
				t.Errorf("seed %d: %v gives %d of %d long after a loss", seed, quota.Algorithm(a), last, burst)
			}
			for range 2 { // From then on, a refusal is due to the caller's own use.
				now += 3 * quota.Instant(window)
				take(now, burst)
				take(now, burst)
			}
			now += 3 * quota.Instant(window)
		}
	}
}

// testSmallFiguresAfterALoss checks a lost bucket that lacks half of its first caller's burst. For
// a caller whose own burst is smaller than that, the bucket is in doubt, even if half of that burst
// is less than a token. After the announced wait, that caller gets a token.
func testSmallFiguresAfterALoss(t *testing.T, s *Instance) {
	if s.Lose == nil {
		t.Log("this store is spared a loss")
		return
	}
	const window = quota.Hour
	now := Base
	for a := range quota.AlgorithmCount {
		for _, small := range []int64{1, 2, 5} {
			now += 5 * quota.Instant(window)
			ask := askOf(t, quota.Algorithm(a), 10, window)
			ask.Most, ask.Waiting = ask.Params, 1
			item := leases.Item{Bucket: keyhash.Key{12, byte(a), byte(small)}, Ask: ask}
			s.SetClock(now)
			s.one(t, item)
			s.Lose(t, now)
			first := s.one(t, item)
			item.Ask.Params = must[quota.Params](t)(quota.NewParams(small, window, small))
			g := s.one(t, item)
			if first.Waiting != 1 || g.Waiting != 0 || !g.Doubt || g.NotBefore <= 0 || g.NotBefore > 2*window {
				t.Errorf("%v, %d of 10: after %+v %+v", quota.Algorithm(a), small, first, g)
			}
			s.SetClock(now + quota.Instant(g.NotBefore))
			if g = s.one(t, item); g.Waiting != 1 {
				t.Errorf("%v, %d of 10: after the wait %+v", quota.Algorithm(a), small, g)
			}
		}
	}
}

// testLostTwins checks a bucket with two ledgers after a loss. Each ledger starts with half of its
// own limit, no matter which one is asked first and whether it grants something. A ledger whose
// limit has refilled by then all that it may have lost starts full.
func testLostTwins(t *testing.T, s *Instance) {
	if s.Lose == nil {
		t.Log("this store is spared a loss")
		return
	}
	type figures struct {
		quota, left int64
		window      quota.Span
	}
	cases := []struct {
		main, draft figures
		later       quota.Span
	}{
		{figures{60, 30, quota.Hour}, figures{20, 10, quota.Hour}, 0},
		{figures{20, 10, quota.Hour}, figures{60, 30, quota.Hour}, 0},
		{figures{60, 60, quota.Minute}, figures{20, 10, quota.Hour}, 10 * quota.Minute},
		{figures{20, 10, quota.Hour}, figures{60, 60, quota.Minute}, 10 * quota.Minute},
	}
	now := Base - Base%quota.Instant(quota.Hour)
	for i, c := range cases {
		now += quota.Instant(10 * quota.Hour)
		s.SetClock(now)
		s.one(t, leases.Item{Bucket: keyhash.Key{13}, Ask: askOf(t, quota.TokenBucket, 10, quota.Hour)})
		s.Lose(t, now)
		s.SetClock(now + quota.Instant(c.later))
		for a := range quota.AlgorithmCount {
			for first := range 4 {
				pair := [2]figures{c.main, c.draft}
				item := func(draft, waiting, cost int64) leases.Item {
					asks := [2]lease.Ask{}
					for j, f := range pair {
						asks[j] = askOf(t, quota.Algorithm(a), f.quota, f.window)
						asks[j].Version = uint64(j+1) << lease.EpochBits
					}
					asks[draft].Waiting, asks[draft].Cost = waiting, cost
					return leases.Item{Bucket: keyhash.Key{14, byte(a), byte(first), byte(i)},
						Ask: asks[draft], Twin: &asks[1-draft], Draft: draft == 1}
				}
				draft, taken := int64(first%2), int64(1)
				if first/2 == 0 {
					s.one(t, item(draft, 1, 1))
				} else if taken = 0; pair[draft].left < pair[draft].quota {
					s.one(t, item(draft, 1, pair[draft].quota))
				}
				g := s.one(t, item(1-draft, 100, 1))
				if want := pair[1-draft].left - taken; g.Waiting != want {
					t.Errorf("%v, case %d, draft %d first, which took %d: the other gives %d, want %d",
						quota.Algorithm(a), i, draft, taken, g.Waiting, want)
				}
				g = s.one(t, item(draft, 100, 1))
				if want := max(0, pair[draft].left-max(taken, pair[1-draft].left)); g.Waiting != want {
					t.Errorf("%v, case %d, draft %d first, which took %d: then it gives %d, want %d",
						quota.Algorithm(a), i, draft, taken, g.Waiting, want)
				}
			}
		}
	}
}

// checkDoubt checks that a refusal is in doubt as long as the bucket lacks the tokens that it
// started without.
func checkDoubt(t *testing.T, at, lost quota.Instant, ask lease.Ask, g lease.Grant) {
	t.Helper()
	if g.Waiting < ask.Waiting && lost > 0 && g.Doubt != inDoubt(at, lost, ask) {
		t.Errorf("%v, refused %d µs after a loss: in doubt %v", ask.Windows, at-lost, g.Doubt)
	}
}

// checkDoubts is checkDoubt, and also checks that reading the bucket gives the same answer.
func (s *Instance) checkDoubts(t *testing.T, at, lost quota.Instant, it leases.Item, g lease.Grant) {
	t.Helper()
	checkDoubt(t, at, lost, it.Ask, g)
	held, err := s.Adjust(t.Context(), it, lease.Change{}, audit.Entry{})
	if err != nil {
		t.Fatal(err)
	}
	if held.Doubt != inDoubt(at, lost, it.Ask) {
		t.Errorf("%v, looked at %d µs after a loss: in doubt %v", it.Ask.Windows, at-lost, held.Doubt)
	}
}

// inDoubt reports whether a bucket still lacks the tokens that it started without after a loss, 0
// for none.
func inDoubt(at, lost quota.Instant, ask lease.Ask) bool {
	return lost > 0 && at < leases.DoubtfulUntil(leases.DoubtfulUntil(lost, ask), ask)
}

// askOf returns an ask for one token at a time of a limit with an algorithm.
func askOf(t *testing.T, a quota.Algorithm, q int64, window quota.Span) lease.Ask {
	t.Helper()
	p := must[quota.Params](t)(quota.NewParams(q, window, q))
	ask := lease.Ask{Params: p, Version: 1, Cost: 1, Nodes: 1}
	if a.Windowed() {
		ask.Windows = must[quota.Windows](t)(quota.NewWindows(a, q, window, 10))
	}
	return ask
}
