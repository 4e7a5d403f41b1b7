// Package inflight holds the arithmetic of requests in flight. It has no clock and does no I/O.
//
// A holder of places reports its total, never a difference. So a message that is lost, repeated or
// late cannot create places.
package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// mostIdle bounds the idle places that a worker holds for future requests. It may hold one for
	// each roomPerIdle free places.
	mostIdle    = 16
	roomPerIdle = 8
)

// Cell is a node's record of one bucket: how many places each of its workers holds. The zero value
// has no requests in flight.
type Cell struct {
	// Limit is the number of places by the policy set of Generation.
	Limit      int64
	Generation uint64
	// Holders has no order, and each holder has at least one place.
	Holders []Holder
	// Permits are the permits that the control plane has leased to the node.
	Permits Permits
	// Ceiling is the number of places that the node may use. It is not stored: Admit sets it.
	Ceiling int64
}

// Holder is a worker that holds places: one for each of its requests in flight, and some idle ones
// for future requests.
type Holder struct {
	Worker uint32
	Places int64
}

// Fit sets the limit, and returns by how much a newer policy set changes it. The limit of the
// newest policy set stays. A smaller limit takes no place away.
func (c *Cell) Fit(limit int64, generation uint64) (by int64) {
	if generation > c.Generation {
		by = limit - c.Limit
	}
	if generation >= c.Generation || len(c.Holders) == 0 {
		c.Limit, c.Generation = limit, generation
	}
	return by
}

// Admit sets the ceiling at now. For a leased bucket the ceiling is the node's permits while they
// last. If beyond is not 0 it replaces the limit, for example because of on_failure: a value above
// the limit holds always, another value is the node's share and holds when no permits last.
func (c *Cell) Admit(now quota.Instant, leased bool, beyond int64) {
	switch p := &c.Permits; {
	case !leased && beyond == 0:
		c.Ceiling = c.Limit
	case now < p.Until && beyond <= c.Limit:
		c.Ceiling = min(p.Count, c.Limit)
	default:
		c.Ceiling = beyond
	}
}

// Held returns how many places all workers hold.
func (c *Cell) Held() (places int64) {
	for _, h := range c.Holders {
		places += h.Places
	}
	return places
}

// Room returns how many places are free. It is negative after a change to a smaller ceiling.
func (c *Cell) Room() int64 { return c.Ceiling - c.Held() }

// Set records how many places a worker holds from now on. This may exceed the ceiling: requests in
// flight count.
func (c *Cell) Set(worker uint32, places int64) {
	for i := range c.Holders {
		if c.Holders[i].Worker != worker {
			continue
		}
		if c.Holders[i].Places = places; places == 0 {
			last := len(c.Holders) - 1
			c.Holders[i] = c.Holders[last]
			c.Holders = c.Holders[:last]
		}
		return
	}
	if places > 0 {
		c.Holders = append(c.Holders, Holder{worker, places})
	}
}

// Of returns how many places a worker holds.
func (c *Cell) Of(worker uint32) int64 {
	for _, h := range c.Holders {
		if h.Worker == worker {
			return h.Places
		}
	}
	return 0
}

// Take sets the places of a worker that has used requests in flight. With more, the worker gets one
// more place, if one is free, and some idle ones. Otherwise it keeps up to idle idle places, if
// there is room. Take returns the worker's places.
func (c *Cell) Take(worker uint32, used, idle int64, more bool) (places int64) {
	c.Set(worker, used)
	places = used
	room := c.Room()
	switch {
	case more && room > 0:
		places += 1 + Idle(room-1, c.Ceiling)
	case !more:
		places += min(idle, Idle(room, c.Ceiling))
	}
	c.Set(worker, places)
	return places
}

// Idle returns how many of the free places a worker may hold for future requests. It is none where
// less than a quarter is free, so that all workers see each free place.
func Idle(room, limit int64) int64 {
	if room*4 < limit {
		return 0
	}
	return min(room/roomPerIdle, mostIdle)
}

// Share returns a node's even share of a limit, at least 1.
func Share(limit, nodes int64) int64 { return max(limit/max(nodes, 1), 1) }
