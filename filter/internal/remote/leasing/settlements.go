package leasing

import "github.com/weir-proxy/weir/shared/quota"

// nameBits is the number of low bits of a reservation's name that number the request of an item,
// from 1. All reservations of an item have the other bits in common.
const nameBits = 16

// settlements are the reservations whose actual cost the control plane does not know yet. They go
// first in the next call with waiting requests; if no such call is under way, in a call of their
// own.
type settlements struct {
	// names is the last name that this VM has given to an item. Its start is random.
	names   uint64
	waiting []*Reservation
	// alone: a call with only settlements is under way.
	alone bool
	// next is the earliest instant to send settlements.
	next quota.Instant
}

// takeItems returns items for the first waiting settlements of a policy set, at most most items.
func (s *settlements) takeItems(version uint64, most int) []item {
	items, kept := make([]item, 0, min(len(s.waiting), most)), s.waiting[:0]
	for _, r := range s.waiting {
		if len(items) == most || r.Need.Version != version {
			kept = append(kept, r)
			continue
		}
		items = append(items, item{kind: settles, need: r.Need, settled: r})
		items[len(items)-1].need.Cost = max(r.Need.Cost, 1) // The cost that was reserved.
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
	return items
}
