package assign

import (
	"math"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// leastWindow is the shortest window of a window algorithm that can be assigned: its leases must
// end within the window.
const leastWindow = 2 * quota.Second

const (
	// fullBurst is of how many seconds of its rate a limit needs a burst to be let through in full.
	fullBurst = 3
	// shortestLease and longestLease are for how many seconds the tokens of an assignment count as
	// leased, when more is asked for than there is.
	shortestLease, longestLease = 1.25, 2.5
)

// Unfit returns the reason why tokens of a policy's limit cannot be assigned for a second or more;
// empty if they can.
func Unfit(p *policy.Policy, l policy.Limit) string {
	switch {
	case p.Mode == policy.ModeLocal:
		return "each Envoy counts it by itself"
	case l.InFlight:
		return "it counts requests in flight"
	case !l.Algorithm.Lends():
		return "its algorithm decides single requests"
	case l.Algorithm.Windowed() && l.Window < leastWindow:
		return "its window is under " + policy.FormatSpan(leastWindow)
	}
	return ""
}

// Throughput returns how many tokens a second of a limit assignments let through, at least and at
// most, when demand exceeds the limit. full is true if they let through the limit's whole rate.
func Throughput(p quota.Params) (least, most int64, full bool) {
	rate := float64(p.Num) / float64(p.Den) * float64(quota.Second)
	burst := float64(p.Burst)
	if burst >= fullBurst*rate {
		return int64(rate), int64(rate), true
	}
	return int64(math.Min(burst/longestLease, rate)), int64(math.Min(burst/shortestLease, rate)), false
}
