// Package adaptive finds how many requests an upstream serves at once, and says which requests to
// shed while more come. It is arithmetic alone: time and what was seen are arguments, so that the
// workers of an Envoy, a simulation and a test decide alike.
//
// Limit is the limit that finds itself, Shed is who is shed. Window is what both go by.
package adaptive

import (
	"math/bits"

	"github.com/weir-proxy/weir/shared/quota"
)

// Buckets are four for each doubling of the latency, from 128 µs to 8.4 s. What is below counts
// into the first, what is above into the last.
const Buckets = 64

// Histogram counts latencies. The zero value holds none.
type Histogram struct {
	Counts [Buckets]uint32
	// Total is the sum of the counts.
	Total uint32
}

// Add counts one latency.
//
//go:noinline
func (h *Histogram) Add(latency quota.Span) {
	h.Counts[bucket(latency)]++
	h.Total++
}

// Merge adds what another one has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i := range h.Counts {
		h.Counts[i] += other.Counts[i]
	}
	h.Total += other.Total
}

// Quantile is the latency in microseconds that a share of those counted do not exceed, within the
// width of a bucket; 0 if none was counted.
//
//go:noinline
func (h *Histogram) Quantile(share float64) float64 {
	rank, below := share*float64(h.Total), 0.0
	for i := range h.Counts {
		n := float64(h.Counts[i])
		if n > 0 && below+n >= rank {
			low, high := edge(i), edge(i+1)
			return low + (high-low)*max(rank-below, 0)/n
		}
		below += n
	}
	return 0
}

// bucket is the index of the bucket of a latency.
func bucket(latency quota.Span) int {
	octave := bits.Len64(uint64(max(latency, 0))) - 8
	if octave < 0 {
		return 0
	}
	return min(octave*4+int(latency>>(octave+5)&3), Buckets-1)
}

// edge is the least latency of a bucket.
func edge(i int) float64 { return float64(int64(4+i%4) << (i/4 + 5)) }
