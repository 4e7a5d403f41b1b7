package limiter_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// One operation is a request of any worker that passes a limit of one bucket: match, key, decision.
// The workers share nothing but the modelled shared data with its one mutex, as Envoy's do, and
// each has a request every 10 µs by the bucket's clock. So two workers on two processors take half
// the time of one if they never wait for each other.
func BenchmarkOneHotBucket(b *testing.B) {
	for _, workers := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("%d_workers", workers), func(b *testing.B) { hotBucket(b, workers) })
	}
}

func hotBucket(b *testing.B, workers int) {
	const one = `{"name": "p", "partition": [], "mode": "local", "limit": {"quota": 100000000, "window": "1s"}}`
	first := newNode(b, false, one)
	nodes := []*node{first}
	for len(nodes) < workers {
		n := newNode(b, false, one)
		n.limiter = limiter.New(limiter.Config{
			Store: bucketstore.New(first.data, [4]byte{}, 1024, 0), Flights: newBook(first.data, 1),
		})
		nodes = append(nodes, n)
	}
	passed := make([]int, workers)
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for w, n := range nodes {
		all.Go(func() { passed[w] = n.pass((b.N + w) / workers) })
	}
	all.Wait()
	b.StopTimer()
	total, decided := 0, uint64(0)
	for w, n := range nodes {
		total, decided = total+passed[w], decided+n.limiter.Stats.Decided[policy.ByLocal]
	}
	if total != b.N || decided != uint64(b.N) {
		b.Fatalf("of %d requests %d passed, %d by the bucket", b.N, total, decided)
	}
}

// pass makes requests 10 µs apart and returns how many were allowed.
func (n *node) pass(requests int) (allowed int) {
	a := match.Attributes{Method: []byte("GET"), Path: []byte("/"), Host: []byte("h"), ClientIP: []byte{10, 0, 0, 1}}
	req, now := &limiter.Request{Stream: 1}, n.now
	for range requests {
		now += 10
		if n.limiter.Begin(req, n.rules, &a, now) == limiter.Allowed {
			allowed++
		}
	}
	return allowed
}
