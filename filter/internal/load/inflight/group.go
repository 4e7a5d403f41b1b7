package inflight

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxGroups bounds the policies with metrics of their own.
const maxGroups = 256

// Group has the metrics of the buckets of one policy.
type Group struct {
	Name string
	// InFlight is the number of this worker's requests in flight.
	InFlight int64
	// Limit is the limit of the bucket that was used last. Peak is the highest use of any bucket in
	// percent of its limit, since the caller last cleared it.
	Limit, Peak int64
	// CountedOut counts requests that lasted longer than the policy's max_hold.
	CountedOut uint64
	// Found is the last limit that an adaptive limit found. Shed counts the requests that it shed,
	// by class.
	Found int64
	Shed  [adaptive.MaxClasses]uint64
	// Touched: the group has changed since the caller last cleared it.
	Touched bool

	measured
}

// measured has the figures that Measure reads and resets.
type measured struct {
	// busy is the sum of the requests' time in flight from begun until counted.
	busy           quota.Span
	begun, counted quota.Instant
	// highest is the highest use of a limit in percent, and level the use now.
	highest, level int64
}

// countTaken counts a request that has taken a place. Room is the number of places left then.
func (g *Group) countTaken(limit, room int64, now quota.Instant) {
	g.addBusy(now)
	g.InFlight++
	g.Limit, g.Touched = limit, true
	used := usedOf(limit, room)
	g.Peak, g.highest = max(g.Peak, used), max(g.highest, used)
}

// countLeft counts a request that has left its place.
func (g *Group) countLeft(now quota.Instant) {
	g.addBusy(now)
	g.InFlight--
}

// addBusy adds the time of the requests in flight until now to busy.
func (g *Group) addBusy(now quota.Instant) {
	if g.InFlight == 0 && g.busy == 0 {
		g.begun = now
	}
	g.busy += quota.Span(g.InFlight) * quota.Span(max(now-g.counted, 0))
	g.counted = now
}

// usedOf returns the use of a limit in percent. Room is the number of places left.
func usedOf(limit, room int64) int64 {
	if limit <= 0 {
		return 0
	}
	return (limit - room) * 100 / limit
}
