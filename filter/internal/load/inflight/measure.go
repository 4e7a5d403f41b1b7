package inflight

import "github.com/weir-proxy/weir/shared/quota"

// Unmeasured reports whether there is something for Measure.
func (b *Book) Unmeasured() bool { return b.unmeasured }

// Measure calls each for every policy of which requests were in flight since it was last called:
// for how long, added up, from when on, and how much of a limit they used at most, in percent.
func (b *Book) Measure(now quota.Instant, each func(policy string, busy quota.Span, since quota.Instant, used int64)) {
	if !b.unmeasured {
		return
	}
	for _, k := range b.buckets { // No request may have come to those that have been full for long.
		if g := k.group; g != nil && k.used > 0 {
			g.level = max(g.level, usedOf(k.limit, k.left()))
		}
	}
	b.unmeasured = false
	for _, g := range b.groups {
		g.count(now)
		g.highest = max(g.highest, g.level)
		if g.busy > 0 || g.highest > 0 {
			each(g.Name, g.busy, g.begun, g.highest)
		}
		g.busy, g.begun, g.highest, g.level = 0, now, g.level, 0
		b.unmeasured = b.unmeasured || g.InFlight > 0
	}
}

// Groups are the policies with requests in flight, now or before.
func (b *Book) Groups() []*Group { return b.groups }
