package adaptive

import "github.com/weir-proxy/weir/shared/quota"

// Window is what was seen of an upstream in a time. Those of several workers add up. The zero value
// has seen nothing.
type Window struct {
	// Latency holds how long the upstream took to begin each answer that counts: not the time for
	// which a request was held before it, and not that of an error, which can be quick.
	Latency Histogram
	// Held is the sum over requests of the microseconds that each was at the upstream.
	Held int64
	// Refused are the requests that the limit did not let through.
	Refused uint32
}

// Merge adds what another worker has seen in the same time.
//
//go:noinline
func (w *Window) Merge(other *Window) {
	w.Latency.Merge(&other.Latency)
	w.Held += other.Held
	w.Refused += other.Refused
}

// Bounds of a window. It is long enough for Enough answers, or for Plenty if it is short. Longest
// ends a window with fewer, of which nothing follows.
const (
	Enough           = 50
	Plenty           = 1000
	Usual            = quota.Second
	Shortest         = 100 * quota.Millisecond
	Longest          = 30 * quota.Second
	latenciesAWindow = 2
)

// Due reports whether a window is to end that has lasted so long. A window is twice as long as the
// upstream usually takes to answer, so that most of its answers are to requests that the limit in
// force has let through.
//
//go:noinline
func (l *Limit) Due(w *Window, lasted quota.Span) bool {
	least := quota.Span(latenciesAWindow * l.Base)
	switch {
	case lasted >= Longest:
		return true
	case lasted >= max(Usual, least):
		return w.Latency.Total >= Enough
	}
	return lasted >= max(Shortest, least) && w.Latency.Total >= Plenty
}

// sample is a window in figures.
type sample struct {
	// rate is the answers a microsecond, held the mean number of requests at the upstream, count
	// the answers.
	rate, held, count float64
	// latency is the quantile in microseconds that the limit goes by. It lies between low and high
	// but for one window in twenty.
	latency, low, high float64
}

//go:noinline
func (w *Window) sample(share float64, lasted quota.Span) sample {
	n := float64(w.Latency.Total)
	doubt := 2 * sqrt(share*(1-share)/n)
	return sample{
		rate: n / float64(lasted), held: float64(w.Held) / float64(lasted), count: n,
		latency: w.Latency.Quantile(share),
		low:     w.Latency.Quantile(share - doubt),
		high:    w.Latency.Quantile(min(share+doubt, 1)),
	}
}
