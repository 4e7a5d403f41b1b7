package inflight

import "github.com/weir-proxy/weir/shared/quota"

// Unmeasured reports whether there is something for Measure.
func (b *Book) Unmeasured() bool { return b.unmeasured }

// Measure calls each for every policy with requests in flight since the last call of Measure: the
// sum of their time in flight, its start, and the highest use of a limit in percent.
func (b *Book) Measure(now quota.Instant, each func(policy string, busy quota.Span, since quota.Instant, used int64)) {
	if !b.unmeasured {
		return
	}
	for _, k := range b.buckets { // Buckets that have been full for long may have had no new request.
		if g := k.group; g != nil && k.used > 0 {
			g.level = max(g.level, usedOf(k.limit, k.placesLeft()))
		}
	}
	b.unmeasured = false
	for _, g := range b.groups {
		g.addBusy(now)
		g.highest = max(g.highest, g.level)
		if g.busy > 0 || g.highest > 0 {
			each(g.Name, g.busy, g.begun, g.highest)
		}
		g.busy, g.begun, g.highest, g.level = 0, now, g.level, 0
		b.unmeasured = b.unmeasured || g.InFlight > 0
	}
}

// Groups returns the policies with requests in flight, now or before.
func (b *Book) Groups() []*Group { return b.groups }
