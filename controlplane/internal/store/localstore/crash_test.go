package localstore_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Whatever had been saved when the store crashed, and however often it crashes, a crash gives a
// bucket at most half its burst anew. It leaves the bucket the tokens that it surely has, up to the
// half. That holds for buckets that the file knows, too, and over orderly restarts.
func TestEachCrashGivesHalfABurstAtMost(t *testing.T) {
	const burst, crashes = 100, 3
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for a := range quota.Algorithm(quota.AlgorithmCount) {
		for range 20 {
			dir, clock := t.TempDir(), newWall()
			s := open(t, dir, localstore.Options{Now: clock.read})
			ask := lease.Ask{Params: perHour(t, burst), Version: 1, Cost: 1, Nodes: 1}
			if a.Windowed() {
				w, err := quota.NewWindows(a, burst, quota.Hour, 10)
				if err != nil {
					t.Fatal(err)
				}
				ask.Windows = w
			}
			take := func(n int64) int64 {
				ask.Waiting = n
				grants, err := s.Grant(t.Context(), []leases.Item{{Bucket: keyhash.Key{byte(a)}, Ask: ask}})
				if err != nil {
					t.Fatal(err)
				}
				return grants[0].Waiting
			}
			saved := take(random.Int64N(burst + 1))
			passed := saved
			for n := range crashes {
				save(t, s)
				passed += take(random.Int64N(burst + 1))
				clock.add(time.Millisecond)
				dir = crash(t, dir)
				s = open(t, dir, localstore.Options{Now: clock.read})
				if random.IntN(2) == 0 { // Nothing has been asked for since.
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = open(t, dir, localstore.Options{Now: clock.read})
				}
				got := take(burst)
				passed += got
				if least := min(burst/2, burst-saved); got < least && n == 0 {
					t.Errorf("%v, seed %d: %d after a crash, want %d at least", a, seed, got, least)
				}
				if most := int64(burst + (n+1)*burst/2); passed > most {
					t.Errorf("%v, seed %d: %d passed over %d crashes, want %d at most", a, seed, passed, n+1, most)
				}
			}
		}
	}
}

// A crash takes from both ledgers of a bucket that the file knows no more than leaves each half of
// its own limit, also if the draft's had not begun: it lacks the half of no other limit.
func TestACrashLeavesADraftHalfOfItsOwnLimit(t *testing.T) {
	for a := range quota.Algorithm(quota.AlgorithmCount) {
		for _, limits := range [][2]int64{{60, 20}, {20, 60}} {
			for first := range 2 {
				for _, before := range []int64{5, 15} {
					dir, clock := t.TempDir(), newWall()
					s := open(t, dir, localstore.Options{Now: clock.read})
					take := func(which int, n int64, alone bool) int64 {
						asks := [2]lease.Ask{}
						for i, q := range limits {
							version := uint64(i+1) << lease.EpochBits
							asks[i] = lease.Ask{Params: perHour(t, q), Version: version, Cost: 1, Nodes: 1}
							if a.Windowed() {
								w, err := quota.NewWindows(a, q, quota.Hour, 10)
								if err != nil {
									t.Fatal(err)
								}
								asks[i].Windows = w
							}
						}
						asks[which].Waiting = n
						it := leases.Item{Bucket: keyhash.Key{byte(a)}, Ask: asks[which], Draft: which == 1}
						if !alone {
							it.Twin = &asks[1-which]
						}
						grants, err := s.Grant(t.Context(), []leases.Item{it})
						if err != nil {
							t.Fatal(err)
						}
						return grants[0].Waiting
					}
					if got := take(0, before, true); got != before {
						t.Fatalf("%v: %d of %d before", a, got, before)
					}
					save(t, s)
					s = open(t, crash(t, dir), localstore.Options{Now: clock.read})
					left := func(which int) int64 { return min(limits[which]/2, limits[which]-before) }
					if got := take(first, 1, false); got != 1 {
						t.Errorf("%v, %d: %d of 1 after a crash", a, limits, got)
					}
					if got, want := take(1-first, 100, false), left(1-first)-1; got != want {
						t.Errorf("%v, %d, %d used, %d first: %d left after a crash, want %d",
							a, limits, before, first, got, want)
					}
				}
			}
		}
	}
}
