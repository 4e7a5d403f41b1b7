package adaptive

import "github.com/weir-proxy/weir/shared/quota"

// Window has the data of an upstream over some time. The windows of several workers can be added.
// The zero value has no data.
type Window struct {
	// Latency has the time in which the upstream began each answer that counts. The time that a
	// request was held before does not count, nor does an error, which can be quick.
	Latency Histogram
	// Held is the sum over all requests of the microseconds at the upstream.
	Held int64
	// Refused is the number of requests that the limit refused.
	Refused uint32
}

// Merge adds the data of another worker over the same time.
//
//go:noinline
func (w *Window) Merge(other *Window) {
	w.Latency.Merge(&other.Latency)
	w.Held += other.Held
	w.Refused += other.Refused
}

// Bounds of a window. It ends with Enough answers, or with Plenty answers if it is short. Longest
// ends a window with fewer answers, which changes nothing.
const (
	Enough           = 50
	Plenty           = 1000
	Usual            = quota.Second
	Shortest         = 100 * quota.Millisecond
	Longest          = 30 * quota.Second
	latenciesAWindow = 2
)

// Due reports whether a window that lasted for the given time ends now. A window is twice as long
// as an answer of the upstream usually takes. So most of its answers are to requests that the
// present limit let through.
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

// sample is a window in numbers.
type sample struct {
	// rate is the number of answers per microsecond, held the mean number of requests at the
	// upstream, count the number of answers.
	rate, held, count float64
	// latency is the percentile that the limit follows, in microseconds. In 19 of 20 windows it is
	// between low and high.
	latency, low, high float64
}

//go:noinline
func (w *Window) takeSample(share float64, lasted quota.Span) sample {
	n := float64(w.Latency.Total)
	doubt := 2 * sqrt(share*(1-share)/n)
	return sample{
		rate: n / float64(lasted), held: float64(w.Held) / float64(lasted), count: n,
		latency: w.Latency.Quantile(share),
		low:     w.Latency.Quantile(share - doubt),
		high:    w.Latency.Quantile(min(share+doubt, 1)),
	}
}
