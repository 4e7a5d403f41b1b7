package bucketstore_test

import (
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

var space = [4]byte{'t', 'e', 's', 't'}

// change adapts a function to a Change.
type change func(e *bucketstore.Entry) bool

func (c change) Apply(e *bucketstore.Entry) bool { return c(e) }

// key is a bucket in a given slot's worth of keys: the first 8 bytes choose the slot, the ninth the
// cell.
func key(slot uint64, n byte) keyhash.Key {
	var k keyhash.Key
	binary.LittleEndian.PutUint64(k[:], slot)
	k[8], k[9] = n, n
	return k
}

// full is a bucket of 10 with a token a second.
var ten = quota.Params{Num: 1, Den: int64(quota.Second), Burst: 10}

// take charges n tokens by the rule of local buckets and reports whether they were there.
func take(st *bucketstore.Store, k keyhash.Key, now quota.Instant, n int64) (ok bool, err error) {
	err = st.Update(bucketstore.Local, k, now, change(func(e *bucketstore.Entry) bool {
		if e.New && e.Debtor > now {
			e.State = quota.State{Debt: min(int64(e.Debtor-now), ten.Burst*ten.Den), Last: now}
		}
		var r quota.Result
		e.Params = ten
		e.State, r = ten.Take(e.State, now, n)
		ok = r.Allowed
		return ok
	}))
	return ok, err
}

func TestEntriesReadBack(t *testing.T) {
	st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
	instant := rapid.Custom(func(t *rapid.T) quota.Instant { return quota.Instant(rapid.Int64().Draw(t, "instant")) })
	number := rapid.Int64Range(0, 1<<32-1)
	rapid.Check(t, func(t *rapid.T) {
		want := bucketstore.Entry{Kind: rapid.SampledFrom([]bucketstore.Kind{bucketstore.Local, bucketstore.Share,
			bucketstore.Leased}).Draw(t, "kind")}
		want.Key = keyhash.Key(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
		if want.Kind == bucketstore.Leased {
			want.Limit = rapid.Uint32().Draw(t, "limit")
			held := rapid.Custom(func(t *rapid.T) lease.Lease {
				return lease.Lease{Tokens: number.Draw(t, "tokens"), Used: number.Draw(t, "used"),
					Expiry: instant.Draw(t, "expiry"), Term: lease.Term(rapid.Uint32().Draw(t, "term"))}
			})
			demand := instant.Draw(t, "da") / 2
			near := rapid.Custom(func(t *rapid.T) quota.Instant { // Half an hour before or after it.
				return demand + quota.Instant(rapid.Int32().Draw(t, "near"))
			})
			want.Credit = lease.Credit{
				Leases:    [2]lease.Lease{held.Draw(t, "l0"), held.Draw(t, "l1")},
				NotBefore: instant.Draw(t, "nb"), DenyCost: number.Draw(t, "dc"), AskAfter: near.Draw(t, "aa"),
				KeepCall: near.Draw(t, "kc"), Recheck: rapid.Bool().Draw(t, "recheck"),
				Short: rapid.Byte().Draw(t, "short"), Demand: number.Draw(t, "d"), DemandAt: demand,
				Level:  rapid.Int64().Draw(t, "level"),
				FullAt: instant.Draw(t, "full"), ShownFullAt: instant.Draw(t, "shown"),
			}
		} else {
			want.State = quota.State{Debt: rapid.Int64Range(0, 10*int64(quota.Second)).Draw(t, "debt"),
				Last: instant.Draw(t, "last") / 2}
			want.Params, want.Generation = ten, rapid.Uint64().Draw(t, "generation")
		}
		write := change(func(e *bucketstore.Entry) bool { *e = want; return true })
		if err := st.Update(want.Kind, want.Key, 0, write); err != nil {
			t.Fatal(err)
		}
		var got bucketstore.Entry
		_ = st.Update(want.Kind, want.Key, 0, change(func(e *bucketstore.Entry) bool { got = *e; return false }))
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("wrote %+v\nread %+v", want, got)
		}
	})
}

func TestKindsOfOneKeyAreApart(t *testing.T) {
	st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
	k := key(0, 1)
	if ok, _ := take(st, k, 0, 10); !ok {
		t.Fatal("a fresh bucket refused")
	}
	_ = st.Update(bucketstore.Share, k, 0, change(func(e *bucketstore.Entry) bool {
		if !e.New {
			t.Error("the share bucket reads the local bucket")
		}
		return false
	}))
}

// Nothing is stored unless the change says so: refusals do not write.
func TestRefusalsDoNotWrite(t *testing.T) {
	data := &shareddatatest.Data{}
	st := bucketstore.New(data, space, 8, 0)
	_, _ = take(st, key(0, 1), 0, 10)
	data.Before = func(op string, _ []byte) {
		if op == "set" {
			t.Error("a refusal wrote")
		}
	}
	if ok, err := take(st, key(0, 1), 0, 1); ok || err != nil {
		t.Errorf("passed %v, %v", ok, err)
	}
}

// Workers race for one bucket: exactly its burst passes, whichever wins, the race to create it
// included.
func TestWorkersShareABucketExactly(t *testing.T) {
	for round := range 200 {
		data := &shareddatatest.Data{}
		var wg sync.WaitGroup
		passed := make([]int, 4)
		for w := range passed {
			wg.Go(func() {
				st := bucketstore.New(data, space, 8, 0)
				for range 10 {
					for {
						ok, err := take(st, key(0, 1), 0, 1)
						if err == nil {
							if ok {
								passed[w]++
							}
							break
						}
					}
				}
			})
		}
		wg.Wait()
		if sum := passed[0] + passed[1] + passed[2] + passed[3]; sum != 10 {
			t.Fatalf("round %d: %d of 10 passed", round, sum)
		}
	}
}

// A slot that changes at every attempt is given up after a bounded number of them, and nothing was
// charged.
func TestContentionIsBounded(t *testing.T) {
	data := &shareddatatest.Data{}
	st, other := bucketstore.New(data, space, 8, 0), bucketstore.New(data, space, 8, 0)
	_, _ = take(other, key(0, 2), 0, 1)
	attempts, now := 0, quota.Instant(0)
	data.Before = func(op string, _ []byte) {
		if op != "set" {
			return
		}
		attempts++
		before := data.Before
		data.Before = nil
		now++
		_, _ = take(other, key(0, 2), now, 1)
		now += quota.Instant(quota.Second)
		data.Before = before
	}
	if _, err := take(st, key(0, 1), 0, 1); err != bucketstore.ErrContended || attempts != bucketstore.MaxAttempts ||
		st.Contended != 1 {
		t.Errorf("%v after %d attempts, %d counted", err, attempts, st.Contended)
	}
	data.Before = nil
	if ok, _ := take(st, key(0, 1), 0, 10); !ok {
		t.Error("a given-up update charged")
	}
}

// Workers in the number of a large machine's, which only charge one bucket, take turns in an order
// that the seed chooses: at each access to the shared data the next access may be another worker's.
// No request is turned away, and not a token is lost or doubled.
func TestManyWorkersAtOneBucketAllGetTheirs(t *testing.T) {
	const workers, each, seed = 32, 100, 1
	r := rand.New(rand.NewPCG(seed, 0))
	var waiting []chan struct{}
	stopped := make(chan bool)
	left, retries := 0, uint64(0)
	var shared shareddatatest.Data
	for w := range workers {
		turn := make(chan struct{})
		waiting = append(waiting, turn)
		go func() {
			<-turn
			yield := func(string, []byte) { stopped <- false; <-turn }
			st := bucketstore.New(yielding{&shared, yield}, space, 8, 0)
			for range each {
				err := st.Update(bucketstore.Local, key(0, 1), 0, change(func(e *bucketstore.Entry) bool {
					e.Params = quota.Params{Num: 1, Den: 1, Burst: workers * each}
					e.State.Debt++
					left = int(e.Params.Remaining(e.State))
					return true
				}))
				if err != nil {
					t.Errorf("seed %d: worker %d: %v", seed, w, err)
				}
			}
			retries += st.Retries
			stopped <- true
		}()
	}
	for len(waiting) > 0 {
		i := r.IntN(len(waiting))
		waiting[i] <- struct{}{}
		if <-stopped {
			waiting = append(waiting[:i], waiting[i+1:]...)
		}
	}
	t.Logf("%d attempts for %d charges", retries+workers*each, workers*each)
	if left != 0 {
		t.Errorf("seed %d: %d tokens are left", seed, left)
	}
}

// yielding is shared data whose callers let others come first.
type yielding struct {
	*shareddatatest.Data
	before func(op string, key []byte)
}

func (d yielding) Get(key []byte) ([]byte, uint32, bool) {
	d.before("get", key)
	return d.Data.Get(key)
}

func (d yielding) PutIfAbsent(key, value []byte) bool {
	d.before("set", key)
	return d.Data.PutIfAbsent(key, value)
}

func (d yielding) CompareAndSwap(key, value []byte, cas uint32) bool {
	d.before("set", key)
	return d.Data.CompareAndSwap(key, value, cas)
}

// The number of keys is fixed whatever comes.
func TestAFloodOfKeysDoesNotGrowTheTable(t *testing.T) {
	data := &shareddatatest.Data{}
	st := bucketstore.New(data, space, 1024, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		var k keyhash.Key
		binary.LittleEndian.PutUint64(k[:], rng.Uint64())
		binary.LittleEndian.PutUint64(k[8:], rng.Uint64())
		_, _ = take(st, k, 0, 1)
	}
	if data.Len() != 1024/8+1 { // The slots, and their number.
		t.Errorf("%d keys, want %d", data.Len(), 1024/8+1)
	}
	if st.Evictions == 0 {
		t.Error("no eviction was counted")
	}
}

// A slot is no longer than its entries, up to eight. A slot of full length with places that no key
// has used yet is read as well.
func TestSlotsGrowAsNeeded(t *testing.T) {
	data := &shareddatatest.Data{}
	slot := append(space[:], 's', 0, 0, 0)
	for n, want := range []int{264, 392, 520, 648, 776, 904, 1032, 1160, 1160} {
		st := bucketstore.New(data, space, 8, 0)
		for range 2 {
			if ok, _ := take(st, key(0, byte(n)), quota.Instant(n), 5); !ok {
				t.Errorf("key %d was refused", n)
			}
		}
		if b, _, _ := data.Get(slot); len(b) != want {
			t.Errorf("%d bytes for %d keys, want %d", len(b), n+1, want)
		}
		if n > 0 {
			continue
		}
		b, _, _ := data.Get(slot)
		full := &shareddatatest.Data{}
		full.Put(slot, append(b, make([]byte, 1160-len(b))...))
		st = bucketstore.New(full, space, 8, 0)
		if ok, _ := take(st, key(0, 0), 0, 1); ok {
			t.Error("the entry of a slot of full length was not read")
		}
		for other := range byte(7) {
			if ok, _ := take(st, key(0, 1+other), 0, 10); !ok || st.Evictions > 0 {
				t.Errorf("a free place was not used: %v, %d evictions", ok, st.Evictions)
			}
		}
	}
}

// A full bucket gives up its place for nothing; a key that was crowded out while it owed tokens
// owes them still.
func TestCrowdingOutMintsNothing(t *testing.T) {
	st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
	victim := key(0, 1)
	if ok, _ := take(st, victim, 0, 10); !ok {
		t.Fatal("a fresh bucket refused")
	}
	// Sixteen others with more patience: each owes all it has, so the victim is the first to go.
	for n := byte(2); n < 18; n++ {
		_, _ = take(st, key(0, n+16), 5*quota.Instant(quota.Second), 10)
	}
	if ok, _ := take(st, victim, 6*quota.Instant(quota.Second), 7); ok {
		t.Error("the victim came back with more than it had earned")
	}
	if ok, _ := take(st, victim, 6*quota.Instant(quota.Second), 6); !ok {
		t.Error("the victim lost its earned tokens")
	}
	if st.Evictions == 0 {
		t.Error("nothing was evicted")
	}
}

// Against an adversary that floods the slot, no key ever gets more than burst + rate·t.
func TestCrowdingOutKeepsTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
		now := quota.Instant(0)
		used := map[keyhash.Key]int64{}
		for range rapid.IntRange(10, 200).Draw(t, "steps") {
			now += quota.Instant(rapid.Int64Range(0, int64(quota.Second)).Draw(t, "pause"))
			k := key(0, rapid.ByteRange(1, 40).Draw(t, "key"))
			n := rapid.Int64Range(1, 10).Draw(t, "n")
			if ok, err := take(st, k, now, n); err != nil {
				t.Fatal(err)
			} else if ok {
				used[k] += n
			}
			if bound := 10 + int64(now/quota.Instant(quota.Second)); used[k] > bound {
				t.Fatalf("%d used by %d µs, the bound is %d", used[k], now, bound)
			}
		}
	})
}

// Bytes of another version, or damage, count as absent and are overwritten.
func TestUnknownBytesAreAbsent(t *testing.T) {
	data := &shareddatatest.Data{}
	slot := append(space[:], 's', 0, 0, 0)
	for _, b := range [][]byte{nil, {1}, []byte("WRS9 something else"), make([]byte, 968)} {
		data.Put(slot, b)
		st := bucketstore.New(data, space, 8, 0)
		if ok, err := take(st, key(0, 1), 0, 10); !ok || err != nil {
			t.Errorf("over %q: %v %v", b, ok, err)
		}
		if ok, _ := take(st, key(0, 1), 0, 1); ok {
			t.Errorf("over %q: the charge was not stored", b)
		}
	}
}

// Whatever bytes stand where a slot is, a bucket can be decided: damage is absent, never a trap.
func TestDamagedSlotsAreDecided(t *testing.T) {
	slot := append(space[:], 's', 0, 0, 0)
	rapid.Check(t, func(t *rapid.T) {
		data := &shareddatatest.Data{}
		st := bucketstore.New(data, space, 8, 0)
		for n := range byte(8) {
			_, _ = take(st, key(0, n), 0, 10)
		}
		b, _, _ := data.Get(slot)
		for range rapid.IntRange(1, 20).Draw(t, "damages") {
			from := rapid.IntRange(4, len(b)-9).Draw(t, "at")
			for i := range 8 {
				b[from+i] = rapid.SampledFrom([]byte{0, 0xff}).Draw(t, "byte")
			}
		}
		data.Put(slot, b)
		count := change(func(e *bucketstore.Entry) bool {
			if !e.New {
				e.State = e.Params.Convert(e.State, 1, ten, 0)
			}
			return false
		})
		for n := range byte(12) {
			if err := st.Update(bucketstore.Local, key(0, n), 0, count); err != nil {
				t.Fatal(err)
			}
			if _, err := take(st, key(0, n), quota.Instant(quota.Second), 1); err != nil {
				t.Fatal(err)
			}
			_ = st.Update(bucketstore.Leased, key(0, n), 0, change(func(e *bucketstore.Entry) bool { return false }))
		}
	})
}
