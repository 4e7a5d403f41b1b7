package leasing

import "github.com/weir-proxy/weir/shared/quota"

// nameBits is how many bits of a reservation's name say which request of an item it is for, from 1.
// They are the lowest; all reservations of an item have the others in common.
const nameBits = 16

// settlements are the reservations whose requests have cost something else, which the control plane
// does not know yet. They go before what requests ask for, in the same call; if none is under way,
// in one of their own.
type settlements struct {
	// names is the last name that this VM has given to an item. It begins at random.
	names   uint64
	waiting []*Reservation
	// alone: a call of settlements alone is under way.
	alone bool
	// next is when to try again.
	next quota.Instant
}

// take returns items of the first settlements that wait, of one policy set and at most so many.
func (s *settlements) take(version uint64, most int) []item {
	items, kept := make([]item, 0, min(len(s.waiting), most)), s.waiting[:0]
	for _, r := range s.waiting {
		if len(items) == most || r.Need.Version != version {
			kept = append(kept, r)
			continue
		}
		items = append(items, item{kind: settles, need: r.Need, settled: r})
		items[len(items)-1].need.Cost = max(r.Need.Cost, 1) // What it had reserved.
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
	return items
}
