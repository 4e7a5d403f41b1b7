package localstore_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/localstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Whatever had been saved when the store crashed, and however often it does, a crash gives a bucket
// no more than half its burst anew, and leaves it what it surely has, up to the half. That holds
// for buckets that the file knows, too, and over orderly restarts.
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
