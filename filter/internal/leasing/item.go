package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// item is what a call asks about one bucket.
type item struct {
	need Need
	// waiting requests of the need's cost, and tokens to keep.
	waiting, keep int64
	// used are the tokens of a report, and report is its name; 0: the item is no report.
	used   int64
	report quota.Instant
	// seq is the number of a claim of permits, 0 of other items: waiting and keep are permits that
	// are wanted beyond those to hold, of which the lent ones last.
	seq        uint64
	hold, lent int64
	// joined: this item and the next are granted together or not at all.
	joined bool
	// name is that of the reservations that the waiting requests are granted. settles is the one
	// that the item settles; nil: it settles none.
	name    uint64
	settles *Reservation
	// line is where the waiters wait; nil if there are none.
	line    *line
	waiters []*request
	// debt is what the item asks to charge; nil for other items.
	debt *debt
}

// open are the waiters that have not ended meanwhile.
func (it *item) open() []*request {
	ended := func(r *request) bool { return r.ended }
	if !slices.ContainsFunc(it.waiters, ended) {
		return it.waiters
	}
	return slices.DeleteFunc(slices.Clone(it.waiters), ended)
}

// carry adds an item of a need. It is not inlined, for the size of the filter.
//
//go:noinline
func (c *call) carry(need *Need) *item {
	c.items = append(c.items, item{})
	it := &c.items[len(c.items)-1]
	it.need = *need
	return it
}

// ask is the item as the rules of leases see it.
func (it *item) ask() lease.Ask {
	return lease.Ask{
		Params: it.need.Params, Version: it.need.Version, Waiting: it.waiting, Cost: it.need.Cost,
		Keep: it.keep, Used: it.used,
	}
}

// message is the item as it travels.
func (it *item) message() wire.LeaseItem {
	m := wire.LeaseItem{
		Bucket: it.need.Bucket, Limit: it.need.Limit,
		Waiting: it.waiting, Cost: it.need.Cost, Keep: it.keep, Used: it.used, Joined: it.joined,
		ExceptionsRevision: it.need.ExceptionsRevision, Consumer: it.need.Consumer, Position: it.need.Position,
		Quota: it.need.Quota, Burst: it.need.Burst, Seq: it.seq, Hold: it.hold, Lent: it.lent,
		Reserved: it.name,
	}
	if r := it.settles; r != nil {
		m.Reserved, m.Nth, m.Actual = r.Name>>nameBits<<nameBits, int64(r.Name&(1<<nameBits-1)), r.actual
	}
	return m
}
