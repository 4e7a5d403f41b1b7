package limiter_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/match"
)

// Several workers at one bucket, in the modelled shared data with its one mutex, each with a request every 10 µs by the bucket's
// clock: the time for a request of any. Of so small a burst that no tokens are taken in advance, each goes to the shared data.
func BenchmarkOneHotBucket(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("in_lots/%d_workers", workers), func(b *testing.B) { hotBucket(b, 100_000_000, workers) })
	}
	b.Run("one_by_one/1_worker", func(b *testing.B) { hotBucket(b, 200, 1) })
}

func hotBucket(b *testing.B, burst, workers int) {
	n := newNode(b, false, fmt.Sprintf(`{"name": "p", "partition": [], "mode": "local", "limit": {"quota": 100000000, "window": "1s", "burst": %d}}`, burst))
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range workers {
		all.Go(func() {
			l := limiter.New(bucketstore.New(n.data, [4]byte{}, 1024), nil)
			a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"), ClientIP: []byte{10, 0, 0, 1}}
			req, now := &limiter.Request{Stream: 1}, n.now
			for range b.N / workers {
				now += 10
				if status := l.Begin(req, n.rules, &a, now); status != limiter.Allowed {
					b.Error(status)
					return
				}
			}
		})
	}
	all.Wait()
}
