// Package inflight holds the arithmetic of requests in flight. It has no clock and does no I/O.
//
// A holder of places says how many it holds, and never how many more or fewer: a message that is
// lost, doubled or late cannot make places.
package inflight

import "github.com/weir-proxy/weir/shared/quota"

const (
	// mostIdle bounds the places that a worker holds for requests to come, and roomPerIdle is for
	// how many free places it may hold one.
	mostIdle    = 16
	roomPerIdle = 8
)

// Cell is what a node knows of one bucket: which of its workers hold how many places. The zero
// value has no requests in flight.
type Cell struct {
	// Limit is how many places there are, by the policy set of Generation.
	Limit      int64
	Generation uint64
	// Holders are in no order, and each has at least one place.
	Holders []Holder
	// Permits are those that the control plane has leased to the node.
	Permits Permits
	// Ceiling is up to how many places the node may use. It is not stored: Admit sets it.
	Ceiling int64
}

// Holder is a worker that holds places: as many as it has requests in flight, and some for requests
// to come.
type Holder struct {
	Worker uint32
	Places int64
}

// Fit sets the limit, and reports by how much a newer policy set changes it. That of the newest
// stays; a smaller one takes no place away.
func (c *Cell) Fit(limit int64, generation uint64) (by int64) {
	if generation > c.Generation {
		by = limit - c.Limit
	}
	if generation >= c.Generation || len(c.Holders) == 0 {
		c.Limit, c.Generation = limit, generation
	}
	return by
}

// Admit sets the ceiling at now. That of a bucket that is leased is what the node holds permits
// for, as long as they last. Beyond, if not 0, is up to how many requests are admitted whatever the
// limit is, by on_failure for example: more than the limit is any number, otherwise it is the
// node's share, which counts when no permits last.
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

// Held is how many places all workers hold.
func (c *Cell) Held() (places int64) {
	for _, h := range c.Holders {
		places += h.Places
	}
	return places
}

// Room is how many places are free; it is negative after a change to a smaller ceiling.
func (c *Cell) Room() int64 { return c.Ceiling - c.Held() }

// Set says how many places a worker holds from now on. It may be more than there are: what is in
// flight counts.
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

// Of is how many places a worker holds.
func (c *Cell) Of(worker uint32) int64 {
	for _, h := range c.Holders {
		if h.Worker == worker {
			return h.Places
		}
	}
	return 0
}

// Take has a worker with so many requests in flight hold their places. With more it gets another
// one, if there is one, and some for requests to come; otherwise it keeps so many idle ones, if
// there is room. It returns how many places the worker holds then.
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

// Idle is how many places a worker may hold for requests to come, of those that are free: none
// where less than a quarter is, so that each free place is seen by all workers.
func Idle(room, limit int64) int64 {
	if room*4 < limit {
		return 0
	}
	return min(room/roomPerIdle, mostIdle)
}

// Share is up to how many requests a node has in flight by its even share of a limit.
func Share(limit, nodes int64) int64 { return max(limit/max(nodes, 1), 1) }
