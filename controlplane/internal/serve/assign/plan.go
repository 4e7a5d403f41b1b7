package assign

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// perRound is how many requests an assignment is to last for, where the limits allow as many:
	// few enough that tokens soon get to where they are wanted.
	perRound = 4
	// roundsPerTTL: an assignment is renewed in the middle of its life, so that one late renewal
	// does no harm.
	roundsPerTTL = 2
	// guessedFor is for how many seconds the demand of a new bucket is unknown: until Envoy reports
	// again.
	guessedFor = 5
	// spared is the part of the level that is kept back while demands are unknown.
	spared = 2
	// minIdle and idleTTLs are how long a bucket without requests is kept.
	minIdle  = 30 * quota.Second
	idleTTLs = 4
)

// Round is one assignment to some of a bucket's filters.
type Round struct {
	// TTL is the life of the assignments, whole seconds. The next round is after Span.
	TTL, Span quota.Span
	// Filters are those that get one, Wants how many requests each of them wants to admit.
	Filters []uint64
	Wants   []int64
}

// Sum is how many requests all filters of the round want to admit.
func (r Round) Sum() (n int64) {
	for _, want := range r.Wants {
		n += want
	}
	return n
}

// span is how long a round with this TTL is. Jitter, in [0, 1024), spreads it between three and
// five quarters, so that replicas which share a limit take turns at being first.
func span(ttl quota.Span, jitter int64) quota.Span {
	round := ttl / roundsPerTTL
	return round*3/4 + round/2*quota.Span(jitter)/1024
}

// plan is what filters with these demands are to get: how long their assignments live, and how many
// requests a second each wants to admit. Where many requests come, an assignment lives for a
// second, so that tokens soon go elsewhere if they are needed there. Where few come, it lives for
// up to half of the time that the limit takes to refill, so that few tokens are lost unused.
//
// A filter whose demand is not known yet is taken for one that uses, before its next report, an
// even share of what the limits earn and of half of what they hold.
func plan(f Figures, demands []Demand) (ttl quota.Span, rates []float64, all float64) {
	count := float64(max(len(demands), 1))
	guess := (f.Rate + float64(f.Level)/spared/guessedFor) / count
	rates = make([]float64, len(demands))
	for i, d := range demands {
		rates[i] = guess
		if rate, known := d.Rate(); known {
			rates[i] = rate
		}
		all += rates[i]
	}
	ttl = life(f, math.Min(all, f.Rate+float64(f.Level)/guessedFor))
	return ttl, rates, all
}

// want is how many tokens a filter wants that gets n requests in a round on average. Where the
// limits allow what all filters get, tokens should rarely run out: it wants a quarter and two
// standard deviations more, and one for a request that comes out of turn; or its part of the
// surplus, which lets it admit a burst. Where they do not, what is left unused would be missing
// elsewhere: it wants a tenth less.
func want(n float64, scarce bool, surplus int64) int64 {
	if scarce {
		return max(int64(math.Ceil(0.9*n)), 1)
	}
	return max(int64(math.Ceil(1.25*n+2*math.Sqrt(n)))+1, surplus)
}

// surplus is what each of so many filters may have beyond its demand: half of what the limits hold
// above three quarters of the burst, since what they earn when they are full would be lost; or of
// what they earn in a round beyond all demands, half of the part to which they are filled, so that
// they fill up all the same, and an empty limit earns for those who need it.
func surplus(f Figures, filters int, all float64, round quota.Span) int64 {
	held := float64(f.Level - f.Burst + f.Burst/4)
	filled := float64(f.Level) / float64(max(f.Burst, 1))
	earned := (f.Rate - all) * float64(round) / float64(quota.Second) * filled
	return int64(math.Max(math.Max(held, earned), 0)) / int64(2*max(filters, 1))
}

// life is the TTL of a bucket that admits so many requests a second.
func life(f Figures, rate float64) quota.Span {
	longest := min(max(f.Window/2/quota.Second, 1), MaxTTL/quota.Second)
	seconds := math.Ceil(perRound * roundsPerTTL / math.Max(rate, 1e-6))
	return quota.Span(math.Min(math.Max(seconds, 1), float64(longest))) * quota.Second
}

// idle reports whether a bucket has had no request for so long that its filter is to forget it.
func idle(d Demand, now quota.Instant, ttl quota.Span) bool {
	return quota.Span(now-d.Used) > max(minIdle, idleTTLs*ttl)
}
