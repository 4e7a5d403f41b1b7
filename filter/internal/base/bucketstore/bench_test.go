package bucketstore_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/shared/quota"
)

// plenty is a bucket that no benchmark empties, and in which nothing refills while the time stands
// still.
var plenty = quota.Params{Num: 1, Den: 1, Burst: quota.MaxUnits}

// spend is a worker that takes one token of a bucket of plenty at a time, and counts.
type spend struct{ passed, contended int }

func (s *spend) Apply(e *bucketstore.Entry) bool {
	e.Params = plenty
	var r quota.Result
	e.State, r = plenty.Take(e.State, 0, 1)
	return r.Allowed
}

// run spends a token of each bucket in turn.
func (s *spend) run(st *bucketstore.Store, first, buckets, times int) {
	for i := range times {
		if st.Update(bucketstore.Local, key(uint64((first+i)%buckets), 1), 0, s) == nil {
			s.passed++
		} else {
			s.contended++
		}
	}
}

// spent is how many tokens the buckets lack altogether.
func spent(b *testing.B, data *shareddatatest.Data, buckets int) (tokens int) {
	b.Helper()
	st := bucketstore.New(data, space, 65536, 0)
	for n := range buckets {
		look := change(func(e *bucketstore.Entry) bool {
			tokens += int(e.State.Debt)
			return false
		})
		if err := st.Update(bucketstore.Local, key(uint64(n), 1), 0, look); err != nil {
			b.Fatal(err)
		}
	}
	return tokens
}

// One operation is a decision of any worker that is stored: the slot is read, changed and swapped
// in the modelled shared data with its single mutex. The workers use a single bucket, or each uses
// all of many buckets in turn. contended/op is the share that gave up after all attempts; every
// decision is in the buckets afterwards, once.
func BenchmarkContention(b *testing.B) {
	for _, buckets := range []int{1, 1024} {
		for _, workers := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%d_buckets/%d_workers", buckets, workers), func(b *testing.B) {
				data, spends := &shareddatatest.Data{}, make([]spend, workers)
				var all sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				for w := range workers {
					all.Go(func() {
						var mine spend // Its counts share no cache line with another worker's.
						mine.run(bucketstore.New(data, space, 65536, 0), w*buckets/workers, buckets, (b.N+w)/workers)
						spends[w] = mine
					})
				}
				all.Wait()
				b.StopTimer()
				passed, contended := 0, 0
				for _, s := range spends {
					passed, contended = passed+s.passed, contended+s.contended
				}
				if tokens := spent(b, data, buckets); passed+contended != b.N || tokens != passed ||
					contended > b.N/10 {
					b.Fatalf("of %d decisions %d passed and %d gave up, and the buckets lack %d tokens", b.N, passed,
						contended, tokens)
				}
				b.ReportMetric(float64(contended)/float64(b.N), "contended/op")
			})
		}
	}
}
