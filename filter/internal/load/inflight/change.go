package inflight

import (
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// change is what a worker stores in a cell, and what it learns from it.
type change struct {
	workers *workers
	worker  uint32
	used    int64
	// more: a place for one more request is wanted. idle are places to keep for requests to come.
	// exact: no place is wanted for requests to come.
	more, exact bool
	idle        int64
	// limit and generation are those of the request; a limit of 0 leaves those of the cell, which
	// they are behind the change.
	limit      int64
	generation uint64
	// have is what the worker holds behind the change, room how many places are free up to the
	// ceiling.
	have, room, ceiling int64

	permitChange
}

// permitChange is the part of a change that concerns permits.
type permitChange struct {
	now quota.Instant
	// leased: the limit is over all nodes. beyond is up to how many requests on_failure admits.
	leased bool
	beyond int64
	// away: the control plane does not answer, so nothing is claimed.
	away bool
	// claims: a claim is to be made, if one is due. seq and answer, if it counts, are an answer.
	claims bool
	seq    uint64
	answer inflight.Answer
	load   inflight.Load

	// claimed: there is a claim to be sent.
	claimed bool
	claim   inflight.Claim
	// permits are those behind the change.
	permits inflight.Permits
}

// apply changes a cell, and reports whether it is to be stored. It may run more than once, each
// time on the newest state.
func (c *change) apply(cell *inflight.Cell) (write bool) {
	for i := len(cell.Holders) - 1; i >= 0; i-- {
		if worker := cell.Holders[i].Worker; !c.workers.lives(worker) {
			cell.Set(worker, 0)
			write = true
		}
	}
	by := int64(0)
	if c.limit > 0 {
		by = cell.Fit(c.limit, c.generation)
	}
	switch {
	case by == 0:
	case by < 0 && c.leased && !c.away:
		cell.Permits.Lapse(c.now)
		write = true
	case by > 0 || !c.leased: // Requests of an older policy set may wait, in this worker or in others.
		write = write || len(cell.Holders) > 0
	}
	if c.answer.For > 0 {
		cell.Permits.Learn(c.now, c.seq, c.answer)
		write = true
	}
	cell.Admit(c.now, c.leased, c.beyond)
	before := cell.Of(c.worker)
	c.have = cell.Take(c.worker, c.used, c.idle, c.more)
	if c.exact {
		c.have = min(c.have, c.used+1)
		cell.Set(c.worker, c.have)
	}
	switch {
	case c.leased:
		write = c.updatePermits(cell) || write
	case !cell.Permits.None(): // The limit was over all nodes before.
		cell.Permits, write = inflight.Permits{}, true
	}
	c.room, c.ceiling, c.limit, c.generation = cell.Room(), cell.Ceiling, cell.Limit, cell.Generation
	return write || c.have != before
}

// updatePermits brings the permits of a cell up to date with what is in flight, and reports whether
// that changes them. One that has nothing to do with the bucket any more is forgotten.
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
