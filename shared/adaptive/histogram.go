// Package adaptive finds how many requests an upstream can serve at the same time, and decides
// which requests to shed when more come. It is pure arithmetic: time and data are arguments, so the
// workers of an Envoy, a simulation and a test decide alike.
//
// Limit is the limit that finds its own value. Shed decides which requests are shed. Both use the
// data of a Window.
package adaptive

import (
	"math/bits"

	"github.com/weir-proxy/weir/shared/quota"
)

// Buckets is the number of buckets: four for each doubling of the latency, from 128 µs to 8.4 s.
// The first bucket also counts lower latencies, the last bucket higher latencies.
const Buckets = 64

// Histogram counts latencies. The zero value is empty.
type Histogram struct {
	Counts [Buckets]uint32
	// Total is the sum of the counts.
	Total uint32
}

// Add counts one latency.
//
//go:noinline
func (h *Histogram) Add(latency quota.Span) {
	h.Counts[bucketOf(latency)]++
	h.Total++
}

// Merge adds the counts of another histogram.
func (h *Histogram) Merge(other *Histogram) {
	for i := range h.Counts {
		h.Counts[i] += other.Counts[i]
	}
	h.Total += other.Total
}

// Quantile returns the latency in microseconds that a share of the counted latencies do not exceed,
// within the width of a bucket; 0 if none was counted.
//
//go:noinline
func (h *Histogram) Quantile(share float64) float64 {
	rank, below := share*float64(h.Total), 0.0
	for i := range h.Counts {
		n := float64(h.Counts[i])
		if n > 0 && below+n >= rank {
			low, high := lowerEdge(i), lowerEdge(i+1)
			return low + (high-low)*max(rank-below, 0)/n
		}
		below += n
	}
	return 0
}

// bucketOf returns the index of the bucket of a latency.
func bucketOf(latency quota.Span) int {
	octave := bits.Len64(uint64(max(latency, 0))) - 8
	if octave < 0 {
		return 0
	}
	return min(octave*4+int(latency>>(octave+5)&3), Buckets-1)
}

// lowerEdge returns the least latency of a bucket.
func lowerEdge(i int) float64 { return float64(int64(4+i%4) << (i/4 + 5)) }
