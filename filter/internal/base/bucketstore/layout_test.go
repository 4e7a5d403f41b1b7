package bucketstore_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// random is any key.
func random(rng *rand.Rand) (k keyhash.Key) {
	for i := range k {
		k[i] = byte(rng.Uint32())
	}
	return k
}

// Whatever size the tables get, how often, and while old and new VMs work on them: a key passes its
// burst and its earned tokens, and not a token more.
func TestAnotherSizeKeepsBuckets(t *testing.T) {
	const perKey = 10
	for name, kind := range map[string]bool{"tokens": false, "windows": true} {
		t.Run(name, func(t *testing.T) {
			data := &shareddatatest.Data{}
			rng := rand.New(rand.NewPCG(1, 2))
			keys := make([]keyhash.Key, 300)
			for i := range keys {
				keys[i] = random(rng)
			}
			passed := map[keyhash.Key]int{}
			now := quota.Instant(quota.Second)
			one := func(st *bucketstore.Store, k keyhash.Key) {
				ok, err := false, error(nil)
				if kind {
					ok, err = takeWindow(st, windowsOf(t, quota.SlidingLog), k, now, 1)
				} else {
					ok, err = take(st, k, now, 1)
				}
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					passed[k]++
				}
			}
			stores := []*bucketstore.Store{bucketstore.New(data, space, 4096, now)}
			for _, size := range []int{8192, 4096, 1024, 65536, 2000, 4096, 4096} {
				for _, k := range keys {
					one(stores[rng.IntN(len(stores))], k)
				}
				stores = append(stores, bucketstore.New(data, space, size, now))
				for range 40 { // About the moment of the change, by old and new VMs.
					now += quota.Instant(10 * quota.Millisecond)
					for range 20 {
						one(stores[rng.IntN(len(stores))], keys[rng.IntN(len(keys))])
					}
				}
			}
			for range 2 * perKey {
				for _, k := range keys {
					one(stores[rng.IntN(len(stores))], k)
				}
			}
			most, earned := perKey, int(now-quota.Instant(quota.Second))/int(quota.Second)
			if !kind {
				most += earned
			}
			for _, k := range keys {
				if n := passed[k]; n > most || n < most-1 {
					t.Fatalf("a key passed %d times, want %d", n, most)
				}
			}
		})
	}
}

// Plugins that want tables of different sizes, and start one after the other or at once, lose
// nothing either.
func TestSizesThatContradictKeepBuckets(t *testing.T) {
	data := &shareddatatest.Data{}
	rng := rand.New(rand.NewPCG(5, 6))
	k, now, passed := random(rng), quota.Instant(quota.Second), 0
	stores := []*bucketstore.Store{bucketstore.New(data, space, 1024, now)}
	for step := range 200 {
		if step < 20 {
			stores = append(stores, bucketstore.New(data, space, 1024<<rng.IntN(4), now))
		}
		now += quota.Instant(rng.Int64N(40)) * quota.Instant(quota.Millisecond)
		for _, st := range stores {
			st.Tick(now)
		}
		if ok, err := takeWindow(stores[rng.IntN(len(stores))], windowsOf(t, quota.SlidingLog), k, now, 1); err != nil {
			t.Fatal(err)
		} else if ok {
			passed++
		}
	}
	if passed != 10 {
		t.Errorf("%d passed, want 10", passed)
	}
}

// A bucket that no caller uses while a plugin asks for another size, and another plugin for the
// former one again, is there all the time.
func TestARestingBucketOutlastsSizesThatContradict(t *testing.T) {
	data := &shareddatatest.Data{}
	rng := rand.New(rand.NewPCG(7, 8))
	keys := make([]keyhash.Key, 500)
	now := quota.Instant(quota.Second)
	st := bucketstore.New(data, space, 1024, now)
	pass := func(k keyhash.Key) (n int) {
		for range 10 {
			if ok, err := takeWindow(st, windowsOf(t, quota.SlidingLog), k, now, 1); err != nil {
				t.Fatal(err)
			} else if ok {
				n++
			}
		}
		return n
	}
	for i := range keys {
		keys[i] = random(rng)
		if pass(keys[i]) != 10 {
			t.Fatal("a new bucket is not full")
		}
	}
	for i, size := range []int{8192, 1024, 8192, 1024, 8192} {
		bucketstore.New(data, space, size, now)
		for range 30 { // Each key is looked for once, some of them in the middle of a change.
			now += quota.Instant(10 * quota.Millisecond)
			st.Tick(now)
			k := keys[len(keys)-1]
			if n := pass(k); n > 0 {
				t.Fatalf("%d more passed %d ms after size %d of the sequence", n, now/1000, i)
			}
			keys = keys[:len(keys)-1]
		}
	}
}

// A key that was evicted from its former place owes the same at its new place.
func TestAnotherSizeKeepsDebtsOfTheEvicted(t *testing.T) {
	data := &shareddatatest.Data{}
	st := bucketstore.New(data, space, 8, 0) // One slot.
	rng := rand.New(rand.NewPCG(3, 4))
	keys := make([]keyhash.Key, 100)
	for i := range keys {
		keys[i] = random(rng)
		if ok, _ := take(st, keys[i], 0, 10); !ok && i < 8 {
			t.Fatal("a bucket is not full at first")
		}
	}
	larger := bucketstore.New(data, space, 8*1024, 0)
	now, passed := quota.Instant(quota.Second), 0
	for _, k := range keys {
		if ok, _ := take(larger, k, now, 5); ok {
			passed++
		}
	}
	if passed > 0 {
		t.Errorf("%d of 100 keys passed 5 a second after they had nothing", passed)
	}
	// Such a debt can be another's, so its bucket is an heir.
	larger = bucketstore.New(data, space, 8*2048, now)
	now += quota.Instant(quota.Second)
	heirs := 0
	for range 100 {
		err := larger.Update(bucketstore.Local, random(rng), now, change(func(e *bucketstore.Entry) bool {
			if e.Heir != (e.Debtor > now) {
				t.Errorf("new %v, owes until %d at %d: an heir %v", e.New, e.Debtor, now, e.Heir)
			}
			if e.Heir {
				heirs++
			}
			return false
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
	if heirs == 0 {
		t.Error("no key has the debt of an evicted key")
	}
}

// A slot that a flood of sizes has left behind costs nothing: bytes that are no size are ignored.
func TestDamagedSizesAreIgnored(t *testing.T) {
	for _, value := range []string{"", "x", "12345678", "12345678\x00\x00\x00\x00", string(make([]byte, 200))} {
		data := &shareddatatest.Data{}
		data.Put([]byte("testz"), []byte(value))
		st := bucketstore.New(data, space, 64, 0)
		if ok, err := take(st, key(5, 1), 0, 10); !ok || err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
}
