package inflight

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// change is the change of a cell by a worker, and the figures that the worker reads from it.
type change struct {
	workers *workers
	worker  uint32
	// used is the number of the worker's requests in flight.
	used int64
	// more: the worker wants a place for one more request.
	more bool
	// exact: the worker wants no places for requests to come.
	exact bool
	// idle is the number of unused places that the worker wants to keep.
	idle int64
	// limit is the limit of the request; 0 keeps the limit of the cell. After the change it is the
	// limit of the cell.
	limit int64
	// generation is the generation of limit; after the change the generation of the cell.
	generation uint64
	// have is the number of places that the worker holds after the change.
	have int64
	// room is the number of places that are free up to the ceiling.
	room, ceiling int64

	permitChange
}

// permitChange is the part of a change that concerns permits.
type permitChange struct {
	now quota.Instant
	// leased: the limit is over all nodes.
	leased bool
	// beyond is the number of requests up to which on_failure admits; 0: it does not decide.
	beyond int64
	// away: the control plane does not answer, so no permits are claimed.
	away bool
	// claims: make a claim, if one is due.
	claims bool
	// seq is the number of the claim that answer belongs to.
	seq uint64
	// answer is the control plane's answer to a claim. It counts if its For is above 0.
	answer inflight.Answer
	load   inflight.Load

	// claimed: claim must be sent.
	claimed bool
	claim   inflight.Claim
	// permits are the permits after the change.
	permits inflight.Permits
}

// apply changes a cell, and reports whether to store it. It may run more than once, each time on
// the newest state.
func (c *change) apply(cell *inflight.Cell) (write bool) {
	write = c.dropDead(cell)
	write = c.fitLimit(cell) || write
	// Take in the answer to a claim: it may change the permits, and so the ceiling.
	if c.answer.For > 0 {
		cell.Permits.Learn(c.now, c.seq, c.answer)
		write = true
	}
	// Take places up to the ceiling, or give places back.
	cell.Admit(c.now, c.leased, c.beyond)
	before := cell.Of(c.worker)
	c.have = cell.Take(c.worker, c.used, c.idle, c.more)
	if c.exact {
		c.have = min(c.have, c.used+1)
		cell.Set(c.worker, c.have)
	}
	// Update the permits. A limit that is no longer over all nodes needs none.
	switch {
	case c.leased:
		write = c.updatePermits(cell) || write
	case !cell.Permits.None():
		cell.Permits, write = inflight.Permits{}, true
	}
	c.room, c.ceiling, c.limit, c.generation = cell.Room(), cell.Ceiling, cell.Limit, cell.Generation
	return write || c.have != before
}

// dropDead removes the places of dead workers from a cell, and reports whether there were any.
func (c *change) dropDead(cell *inflight.Cell) (write bool) {
	for i := len(cell.Holders) - 1; i >= 0; i-- {
		if worker := cell.Holders[i].Worker; !c.workers.isAlive(worker) {
			cell.Set(worker, 0)
			write = true
		}
	}
	return write
}

// fitLimit sets the cell's limit, and reports whether that changes the cell for other requests.
func (c *change) fitLimit(cell *inflight.Cell) (write bool) {
	if c.limit <= 0 {
		return false
	}
	by := cell.Fit(c.limit, c.generation)
	if by < 0 && c.leased {
		// The permits were asked for under a higher limit. In an outage the node keeps them.
		if !c.away {
			cell.Permits.Lapse(c.now)
		}
		return !c.away
	}
	// Requests of an older policy set may wait, in this worker or in another worker.
	return by != 0 && len(cell.Holders) > 0
}

// updatePermits updates the permits of a cell for the requests in flight, and reports whether that
// changes them. Permits that no request needs any more are deleted.
func (c *change) updatePermits(cell *inflight.Cell) (write bool) {
	p := &cell.Permits
	if used := p.Used && !c.away || c.more && !c.away; used != p.Used {
		p.Used, write = used, true
	}
	c.load.Limit, c.load.InFlight = cell.Limit, cell.Held()
	if c.claimed = c.claims && !c.away && p.Due(c.now, c.load) <= c.now; c.claimed {
		c.claim, write = p.Ask(c.now, c.load), true
		cell.Admit(c.now, true, c.beyond)
	}
	if p.Due(c.now, c.load) == quota.Forever && !p.None() {
		*p, write = inflight.Permits{}, true
	}
	c.permits = *p
	return write
}
