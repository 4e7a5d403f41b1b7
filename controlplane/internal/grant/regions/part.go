package regions

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// Part is the part of a policy that a region may grant.
type Part struct {
	// Rate and Burst are shares of Whole.
	Rate, Burst int64
	// Epoch grows with each change of a part.
	Epoch uint64
}

// Of returns the part of a limit: of rate and burst for a token bucket or a queue, of the quota for
// a window algorithm. Less than one token counts as one token.
func (p Part) Of(l policy.Limit) policy.Limit {
	if p.Rate == Whole && p.Burst == Whole {
		return l
	}
	burst := p.Burst
	if l.Algorithm.Windowed() {
		burst = p.Rate
		l.Quota = max(1, shareOf(l.Quota, p.Rate))
	}
	l.Params = l.Params.Part(p.Rate, Whole, max(1, shareOf(l.Params.Burst, burst)))
	return l
}

// shareOf returns n·part/Whole rounded down.
func shareOf(n, part int64) int64 { return n/Whole*part + n%Whole*part/Whole }

// Grace returns how long, after a region has given up the part, requests admitted with it can still
// count against the policy. It is the longest grace of the policy's limits. See the type Grace.
func (p Part) Grace(pol *policy.Policy) quota.Span {
	longest := quota.Span(0)
	for _, limits := range [...][]policy.Limit{pol.Limits, pol.Candidate} {
		for _, l := range limits {
			// memory is the time after which the limit has forgotten a request.
			memory := p.Of(l).Params.Window()
			switch {
			case l.InFlight:
				memory = inflight.TTL
			case l.Algorithm.Windowed():
				memory = 2 * l.Window
			}
			// Before that, nodes may spend leased tokens, and use late answers.
			longest = max(longest, memory+2*lease.TTL(l.Params)+2*lease.Deadline)
		}
	}
	return longest
}
