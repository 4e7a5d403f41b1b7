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
	"github.com/weir-proxy/weir/shared/quota"
)

// algorithms are the algorithms that count in windows.
var algorithms = []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter, quota.SlidingLog}

// windowsOf are 10 requests in 10 seconds.
func windowsOf(t rapid.TB, a quota.Algorithm) quota.Windows {
	w, err := quota.NewWindows(a, 10, 10*quota.Second, 10)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// takeWindow charges n requests by the rule of local windows and reports whether they were there.
func takeWindow(
	st *bucketstore.Store, w quota.Windows, k keyhash.Key, now quota.Instant, n int64,
) (ok bool, err error) {
	err = st.Update(bucketstore.Window, k, now, change(func(e *bucketstore.Entry) bool {
		if e.New && e.Debtor > now {
			e.History = w.Owing(now, e.Debtor, e.Owes)
		}
		e.Windows = w
		ok = w.Take(&e.History, now, n).Allowed
		return ok || e.New && len(e.History.Marks) > 0
	}))
	return ok, err
}

func TestHistoriesReadBack(t *testing.T) {
	st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(algorithms).Draw(t, "algorithm")
		w, err := quota.NewWindows(a, rapid.Int64Range(1, quota.MaxLog).Draw(t, "quota"),
			quota.Millisecond*quota.Span(rapid.Int64Range(1000,
				int64(quota.MaxWindow/quota.Millisecond)).Draw(t, "window")),
			rapid.IntRange(1, quota.MaxSubwindows).Draw(t, "parts"))
		if err != nil {
			t.Fatal(err)
		}
		w = w.At(rapid.Uint64().Draw(t, "offset"))
		want := bucketstore.Entry{Kind: bucketstore.Window, Windows: w,
			Generation: rapid.Uint64().Draw(t, "generation")}
		want.Key = keyhash.Key(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
		now := quota.Instant(rapid.Int64Range(0, 1<<51).Draw(t, "start"))
		for range rapid.IntRange(1, 400).Draw(t, "requests") {
			now += quota.Instant(rapid.Int64Range(0,
				int64(w.Length)/rapid.Int64Range(1, 500).Draw(t, "share")).Draw(t, "pause"))
			w.Take(&want.History, now, 1)
		}
		if rapid.Bool().Draw(t, "converted") {
			next := windowsOf(t, rapid.SampledFrom(algorithms).Draw(t, "next"))
			w.Convert(&want.History, now, next)
			want.Windows = next
		}
		write := change(func(e *bucketstore.Entry) bool { *e = want; return true })
		if err := st.Update(want.Kind, want.Key, 0, write); err != nil {
			t.Fatal(err)
		}
		var got bucketstore.Entry
		_ = st.Update(want.Kind, want.Key, 0, change(func(e *bucketstore.Entry) bool { got = *e; return false }))
		if len(got.History.Marks) == 0 && len(want.History.Marks) == 0 {
			got.History.Marks = want.History.Marks
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("wrote %+v\nread %+v", want, got)
		}
	})
}

// The longest history there can be leaves room for itself in a slot.
func TestLongestHistoryIsKept(t *testing.T) {
	data := &shareddatatest.Data{}
	st := bucketstore.New(data, space, 8, 0)
	w, err := quota.NewWindows(quota.SlidingLog, quota.MaxLog, quota.MaxWindow, 1)
	if err != nil {
		t.Fatal(err)
	}
	step := quota.Instant(quota.MaxWindow) / quota.MaxLog
	for i := range quota.Instant(3 * quota.MaxLog) {
		for n := range byte(8) {
			if ok, err := takeWindow(st, w, key(0, n), i*step, 1); err != nil {
				t.Fatal(err)
			} else if n == 7 && !ok && st.Evictions == 0 {
				t.Fatalf("request %d was refused", i)
			}
		}
		b, _, _ := data.Get(append(space[:], 'w', 0, 0, 0))
		if len(b) > 4096 {
			t.Fatalf("a slot of %d bytes", len(b))
		}
	}
	if st.Evictions == 0 {
		t.Error("the slot was never full: the test says nothing")
	}
}

// Workers race for one bucket: exactly its quota passes.
func TestWorkersShareAWindowExactly(t *testing.T) {
	for round := range 100 {
		w := windowsOf(t, algorithms[round%len(algorithms)])
		data := &shareddatatest.Data{}
		var wg sync.WaitGroup
		passed := make([]int, 4)
		for worker := range passed {
			wg.Go(func() {
				st := bucketstore.New(data, space, 8, 0)
				for range 10 {
					ok, err := takeWindow(st, w, key(0, 1), 0, 1)
					for err != nil {
						ok, err = takeWindow(st, w, key(0, 1), 0, 1)
					}
					if ok {
						passed[worker]++
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

// The number of keys is fixed whatever comes, and so is their size.
func TestAFloodOfWindowsDoesNotGrowTheTable(t *testing.T) {
	data := &shareddatatest.Data{}
	st := bucketstore.New(data, space, 1024, 0)
	w := windowsOf(t, quota.SlidingLog)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		var k keyhash.Key
		binary.LittleEndian.PutUint64(k[:], rng.Uint64())
		binary.LittleEndian.PutUint64(k[8:], rng.Uint64())
		_, _ = takeWindow(st, w, k, 0, 1)
	}
	if data.Len() != 1024/8+1 || st.Evictions == 0 {
		t.Errorf("%d keys, want %d; %d evictions", data.Len(), 1024/8+1, st.Evictions)
	}
}

// Against an adversary that floods the slot, no key ever gets more than its quota in a window: in
// any window if windows slide, in a window of its grid if they are fixed, and twice its quota for
// the counter.
func TestCrowdingOutKeepsTheWindow(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := windowsOf(t, a)
				st := bucketstore.New(&shareddatatest.Data{}, space, 8, 0)
				now := quota.Instant(0)
				type use struct {
					at quota.Instant
					n  int64
				}
				used := map[keyhash.Key][]use{}
				for range rapid.IntRange(10, 200).Draw(t, "steps") {
					now += quota.Instant(rapid.Int64Range(0, int64(quota.Second)).Draw(t, "pause"))
					k := key(0, rapid.ByteRange(1, 40).Draw(t, "key"))
					n := rapid.Int64Range(1, 10).Draw(t, "n")
					ok, err := takeWindow(st, w, k, now, n)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						continue
					}
					used[k] = append(used[k], use{now, n})
					sum, bound := int64(0), w.Quota
					for _, u := range used[k] {
						if a == quota.FixedWindow && u.at/quota.Instant(w.Length) == now/quota.Instant(w.Length) ||
							a != quota.FixedWindow && u.at > now-quota.Instant(w.Length) {
							sum += u.n
						}
					}
					if a == quota.SlidingWindowCounter {
						bound = 2*w.Quota - 1
					}
					if sum > bound {
						t.Fatalf("%d in a window that ends at %d, the bound is %d", sum, now, bound)
					}
				}
			})
		})
	}
}

// Whatever bytes stand where a slot is, a bucket can be decided: damage is absent, never a trap.
func TestDamagedWindowsAreDecided(t *testing.T) {
	slot := append(space[:], 'w', 0, 0, 0)
	rapid.Check(t, func(t *rapid.T) {
		data := &shareddatatest.Data{}
		st := bucketstore.New(data, space, 8, 0)
		for i := range byte(40) {
			_, _ = takeWindow(st, windowsOf(t, algorithms[i%4]), key(0, i%8),
				quota.Instant(i)*quota.Instant(quota.Second)/4, 1)
		}
		b, _, _ := data.Get(slot)
		switch rapid.IntRange(0, 2).Draw(t, "damage") {
		case 0:
			b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
		case 1:
			b = append(b, rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(t, "more")...)
		}
		for range rapid.IntRange(0, 20).Draw(t, "bytes") {
			if len(b) > 4 {
				b[rapid.IntRange(4, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
		}
		data.Put(slot, b)
		for n := range byte(12) {
			w := windowsOf(t, algorithms[n%4])
			convert := change(func(e *bucketstore.Entry) bool {
				if !e.New {
					e.Windows.Convert(&e.History, 1, w)
					e.Windows = w
				}
				w.Take(&e.History, 2, 1)
				return false
			})
			if err := st.Update(bucketstore.Window, key(0, n), 0, convert); err != nil {
				t.Fatal(err)
			}
			if _, err := takeWindow(st, w, key(0, n), 20*quota.Instant(quota.Second), 1); err != nil {
				t.Fatal(err)
			}
		}
	})
}
