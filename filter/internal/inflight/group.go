package inflight

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/text"
)

// maxGroups bounds the policies that metrics tell apart.
const maxGroups = 256

// Group is what metrics show of the buckets of one policy.
type Group struct {
	Name string
	// InFlight is how many requests of this worker are in flight.
	InFlight int64
	// Limit is the limit of the bucket that was used last, Peak how much of one was used at most
	// since Groups was last called, in percent.
	Limit, Peak int64
	// CountedOut counts requests that lasted longer than they count.
	CountedOut uint64
	// Found is the limit that was found last, of one that finds itself; Shed are the requests that
	// it has shed, by class.
	Found int64
	Shed  [adaptive.MaxClasses]uint64
	// Touched: the group has changed since Groups was last called.
	Touched bool
}

// take notes a request that has taken a place, after which so many are left.
func (g *Group) take(limit, room int64) {
	g.InFlight++
	g.Limit, g.Touched = limit, true
	if limit > 0 {
		g.Peak = max(g.Peak, (limit-room)*100/limit)
	}
}

// Group finds the group of a policy, nil beyond the bound.
func (b *Book) Group(name []byte) *Group {
	if len(name) == 0 {
		return nil
	}
	for _, g := range b.groups {
		if len(g.Name) == len(name) && text.HasPrefix(name, g.Name) {
			return g
		}
	}
	if len(b.groups) >= maxGroups {
		return nil
	}
	g := &Group{Name: string(name)}
	b.groups = append(b.groups, g)
	return g
}

// Groups are the policies with requests in flight, now or before.
func (b *Book) Groups() []*Group { return b.groups }
