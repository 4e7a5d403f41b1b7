package inflight

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxGroups bounds the policies that metrics tell apart.
const maxGroups = 256

// Group is what metrics show of the buckets of one policy.
type Group struct {
	Name string
	// InFlight is how many requests of this worker are in flight.
	InFlight int64
	// Limit is the limit of the bucket that was used last, Peak how much of one was used at most
	// since the caller last cleared it, in percent.
	Limit, Peak int64
	// CountedOut counts requests that lasted longer than they count.
	CountedOut uint64
	// Found is the limit that was found last, of an adaptive one; Shed are the requests that
	// it has shed, by class.
	Found int64
	Shed  [adaptive.MaxClasses]uint64
	// Touched: the group has changed since the caller last cleared it.
	Touched bool

	measured
}

// measured is what Measure takes of a group.
type measured struct {
	// busy is for how long requests were in flight from begun until counted, added up.
	busy           quota.Span
	begun, counted quota.Instant
	// highest is how much of a limit was used at most, in percent, level how much is now.
	highest, level int64
}

// take notes a request that has taken a place, after which so many are left.
func (g *Group) take(limit, room int64, now quota.Instant) {
	g.count(now)
	g.InFlight++
	g.Limit, g.Touched = limit, true
	used := usedOf(limit, room)
	g.Peak, g.highest = max(g.Peak, used), max(g.highest, used)
}

// leave notes a request that has left its place.
func (g *Group) leave(now quota.Instant) {
	g.count(now)
	g.InFlight--
}

// count adds up what was in flight until now.
func (g *Group) count(now quota.Instant) {
	if g.InFlight == 0 && g.busy == 0 {
		g.begun = now
	}
	g.busy += quota.Span(g.InFlight) * quota.Span(max(now-g.counted, 0))
	g.counted = now
}

// usedOf is how much of a limit is used, in percent, when so many places are left.
func usedOf(limit, room int64) int64 {
	if limit <= 0 {
		return 0
	}
	return (limit - room) * 100 / limit
}
