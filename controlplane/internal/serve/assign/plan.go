package assign

import (
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// perRound is the number of requests that an assignment should last for, if the limits allow
	// it. It is small, so that tokens soon get to the filters that want them.
	perRound = 4
	// roundsPerTTL: an assignment is renewed in the middle of its life, so that one late renewal
	// does no harm.
	roundsPerTTL = 2
	// guessedFor is the time, in seconds, for which the demand of a new bucket is unknown: until
	// Envoy reports again.
	guessedFor = 5
	// While demands are unknown, 1/spared of the level is planned for use. The rest is kept back.
	spared = 2
	// minIdle and idleTTLs are the times for which a bucket without requests is kept.
	minIdle  = 30 * quota.Second
	idleTTLs = 4
)

// Round is one assignment to some of a bucket's filters.
type Round struct {
	// TTL is the life of the assignments, whole seconds. The next round is after Span.
	TTL, Span quota.Span
	// Filters are the filters with an assignment, Wants the requests that each of them wants to
	// admit.
	Filters []uint64
	Wants   []int64
}

// Sum returns the requests that all filters of the round want to admit.
func (r Round) Sum() (n int64) {
	for _, want := range r.Wants {
		n += want
	}
	return n
}

// roundLength returns the length of a round with this TTL. Jitter, in [0, 1024), spreads it between
// three and five quarters, so that replicas which share a limit take turns at being first.
func roundLength(ttl quota.Span, jitter int64) quota.Span {
	round := ttl / roundsPerTTL
	return round*3/4 + round/2*quota.Span(jitter)/1024
}

// planRates returns the life of the assignments to filters with these demands, and the requests a
// second that each filter wants to admit. If many requests come, an assignment lives for a second,
// so that tokens soon go to other filters if they are needed there. If few requests come, it lives
// for up to half of the time that the limit takes to refill, so that few tokens are lost unused.
//
// The demand of a filter may be unknown before its next report. planRates then assumes that it uses
// an even share of the limits' earnings and of half of their level.
func planRates(f Figures, demands []Demand) (ttl quota.Span, rates []float64, all float64) {
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
	ttl = ttlFor(f, math.Min(all, f.Rate+float64(f.Level)/guessedFor))
	return ttl, rates, all
}

// wantedTokens returns the tokens that a filter wants which gets n requests in a round on average.
// If the limits allow the demand of all filters, tokens should rarely run out. The filter then
// wants a quarter and two standard deviations more, and one token for a request out of turn. If its
// part of the surplus is greater, it wants that: it can then admit a burst. If tokens are scarce,
// unused tokens would be missing elsewhere: the filter wants a tenth less.
func wantedTokens(n float64, scarce bool, surplus int64) int64 {
	if scarce {
		return max(int64(math.Ceil(0.9*n)), 1)
	}
	return max(int64(math.Ceil(1.25*n+2*math.Sqrt(n)))+1, surplus)
}

// surplusPerFilter returns the tokens that each filter may have beyond its demand. It takes the
// greater of two amounts and divides half of it among the filters. The first is the limits' level
// above three quarters of the burst: a full limit loses its earnings. The second is the limits'
// earnings in a round beyond all demands, times the part to which the limits are filled. So the
// limits fill up all the same, and an empty limit earns for the filters in need.
func surplusPerFilter(f Figures, filters int, all float64, round quota.Span) int64 {
	held := float64(f.Level - f.Burst + f.Burst/4)
	filled := float64(f.Level) / float64(max(f.Burst, 1))
	earned := (f.Rate - all) * float64(round) / float64(quota.Second) * filled
	return int64(math.Max(math.Max(held, earned), 0)) / int64(2*max(filters, 1))
}

// ttlFor returns the TTL of a bucket that admits rate requests a second.
func ttlFor(f Figures, rate float64) quota.Span {
	longest := min(max(f.Window/2/quota.Second, 1), MaxTTL/quota.Second)
	seconds := math.Ceil(perRound * roundsPerTTL / math.Max(rate, 1e-6))
	return quota.Span(math.Min(math.Max(seconds, 1), float64(longest))) * quota.Second
}

// isIdle reports whether a filter should forget a bucket, because its last request is too long ago.
func isIdle(d Demand, now quota.Instant, ttl quota.Span) bool {
	return quota.Span(now-d.Used) > max(minIdle, idleTTLs*ttl)
}
