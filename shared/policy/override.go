package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/quota"
)

// ByConsumer reports whether each consumer has its own buckets under the policy. A limit for one
// consumer needs them.
func (p *Policy) ByConsumer() bool {
	for _, part := range p.Partition {
		if part.Kind == PartConsumer {
			return true
		}
	}
	return false
}

// Override makes a consumer's own limit under a policy that counts in this way. The burst, 0 for
// the quota, is for token buckets only: window algorithms admit the quota. The error names the
// figure that does not fit.
func (c Counting) Override(units int64, window quota.Span, burst int64) (Limit, error) {
	if c.Algorithm.Windowed() {
		burst = 0
	}
	c.Own = 0 // No request holds these figures.
	return NewLimit(c, units, window, burst)
}

// DecodeOverride reads the limits that replace p's for one consumer: one limit, a list, or the word
// unlimited for no limit. It reports all problems, with their paths below path.
func DecodeOverride(path string, n Node, p *Policy) ([]Limit, Problems) {
	r := &reader{}
	if some, _ := p.InFlight(); some {
		r.failAt(path, "cannot be for a policy that limits requests in flight: its limit is the same for all; use "+
			"limits by tier")
		return nil, r.problems
	}
	r.mustHold(path, len(p.Reserve) == 0, "cannot be of policy "+p.Name+", which has a reserve: one number cannot "+
		"define the reserved parts")
	if n.Kind == String && n.Text == "unlimited" {
		return nil, r.problems
	}
	if n.Kind != Map && n.Kind != List {
		r.wrongKind(path, n, "a mapping like {quota: 100, window: 1m}, a list of such, or unlimited")
		return nil, r.problems
	}
	limits := r.readLimits(path, n, p.Counting)
	for _, l := range limits {
		r.mustHold(path, l.Own == 0, "must have numbers: it is the consumer's own already")
		r.mustHold(path, l.Suspended() || p.Cost.Source.Name != "" || p.Cost.Fixed <= l.Params.Burst,
			"has a burst of "+strconv.FormatInt(l.Params.Burst, 10)+
				" where a request costs "+strconv.FormatInt(p.Cost.Fixed, 10)+
				": every request would be refused; write quota: 0 if that is meant")
	}
	return limits, r.problems
}
