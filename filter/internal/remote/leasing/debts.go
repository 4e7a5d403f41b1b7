package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// maxDebts bounds the buckets whose debts a VM remembers. Beyond it small debts are forgotten.
	maxDebts = 1024
	// maxCharged bounds the debts in a call of the tick, so that these calls do not delay the calls
	// in which requests wait.
	maxCharged = 16
	// maxDue bounds the tokens of an item. It is far above the debt of any bucket, and far below
	// the largest number of a message.
	maxDue = 1 << 16
	// maxOwed bounds the reservations that a VM remembers of requests served from shares, and
	// maxOwedOf the reservations of a bucket. A request beyond the bound costs its reserved tokens.
	maxOwed   = 4096
	maxOwedOf = 1024
	// maxOwedAsked bounds the reservations of an item: if its call has no answer, each reservation
	// is settled separately.
	maxOwedAsked = 128
)

// debts are the tokens of central buckets that requests of this VM took from the node's shares and
// that the control plane has not charged. The next call for the bucket charges them first; if there
// is no such call, the tick does. The zero value is empty.
type debts struct {
	byBucket map[keyhash.Key]*debt
	// all are the same debts. A debt that grows moves to the front; the last debt is forgotten
	// first.
	all []*debt
	// call is the tick's call under way; nil: there is none.
	call *call
	// next is when the tick next charges debts.
	next quota.Instant
	// away is when the control plane stopped answering; 0 while it answers.
	away quota.Instant
	// owed is the number of reservations of all debts.
	owed int
}

// debt is the number of a bucket's tokens that the control plane has not charged.
type debt struct {
	// in are the debts that contain this debt.
	in     *debts
	need   Need
	tokens int64
	// held is the part of tokens that a late call without an answer may have charged.
	held int64
	// fadesFrom is when the debt begins to fade in an outage. Before that instant the bucket is not
	// full, so no earned token is lost.
	fadesFrom quota.Instant
	// at is when to ask again, if the tokens could not be charged.
	at quota.Instant
	// asked is the part of tokens that a call under way charges; 0: no call does.
	asked int64
	// reserved are the reservations of requests whose cost becomes known later.
	reserved []*Reservation
	// index is the debt's index in debts.all.
	index int
}

// heldDebt is a number of tokens that wait for the end of a late call.
type heldDebt struct {
	debt   *debt
	tokens int64
}

// debtOf returns the debt of a bucket, and updates its need. It creates a missing debt; nil: there
// is no room for it.
func (ds *debts) debtOf(need Need) *debt {
	d := ds.byBucket[need.Bucket]
	if d == nil {
		if !ds.makeRoom() {
			return nil
		}
		if ds.byBucket == nil {
			ds.byBucket = make(map[keyhash.Key]*debt)
		}
		d = &debt{in: ds, index: len(ds.all)}
		ds.byBucket[need.Bucket] = d
		ds.all = append(ds.all, d)
	}
	d.need = need
	return d
}

// makeRoom forgets a small debt if there are maxDebts debts. It reports whether there is room.
func (ds *debts) makeRoom() bool {
	last := len(ds.all) - 1
	if last+1 < maxDebts {
		return true
	}
	d := ds.all[last]
	if d.asked+d.held > 0 {
		return false
	}
	d.tokens = 0
	d.forgetPaid()
	delete(ds.byBucket, d.need.Bucket)
	ds.all = ds.all[:last]
	return true
}

// payDebt reduces a bucket's debt by tokens that the control plane has charged and no request used.
// It returns the tokens that are left.
func (ds *debts) payDebt(bucket keyhash.Key, tokens int64) (left int64) {
	d := ds.byBucket[bucket]
	if d == nil {
		return tokens
	}
	paid := min(tokens, d.tokens)
	d.tokens -= paid
	return tokens - paid
}

// payFree pays a bucket's debt with tokens that have another use if they are not needed here. It
// spares the part of the debt that another call than by charges or may have charged. It returns the
// tokens that are left.
func (ds *debts) payFree(bucket keyhash.Key, tokens int64, by *call) (left int64) {
	paid := ds.payableFree(bucket, tokens, by)
	ds.payDebt(bucket, paid)
	return tokens - paid
}

// payableFree returns the number of tokens that payFree pays with.
func (ds *debts) payableFree(bucket keyhash.Key, tokens int64, by *call) int64 {
	d := ds.byBucket[bucket]
	if d == nil {
		return 0
	}
	free := d.tokens - d.asked - d.held
	if by != nil {
		for _, h := range by.held {
			if h.debt == d {
				free += h.tokens
			}
		}
	}
	return min(tokens, max(free, 0))
}

// addReservation notes that a request whose cost becomes known later has taken its tokens from the
// share. It returns nil if there is no room for another reservation.
func (d *debt) addReservation(need Need) *Reservation {
	if d.in.owed == maxOwed || len(d.reserved) == maxOwedOf {
		return nil
	}
	r := &Reservation{Need: need, owes: true}
	d.reserved = append(d.reserved, r)
	d.in.owed++
	return r
}

// removeReservation removes the i-th reservation from the debt.
func (d *debt) removeReservation(i int) {
	d.reserved[i].owes = false
	d.reserved = slices.Delete(d.reserved, i, i+1)
	d.in.owed--
}

// forgetPaid removes the first reservations while all reservations together cost more than the
// debt's tokens: the bucket has earned the difference. It returns the tokens without a reservation.
func (d *debt) forgetPaid() (plain int64) {
	plain = d.tokens
	for _, r := range d.reserved {
		plain -= r.Need.Cost
	}
	for plain < 0 && len(d.reserved) > 0 {
		plain += d.reserved[0].Need.Cost
		d.removeReservation(0)
	}
	return plain
}

// countAlike returns how many of the first reservations have the same cost and fit into tokens.
func (d *debt) countAlike(tokens int64) (n int) {
	cost := d.reserved[0].Need.Cost
	for n < len(d.reserved) && d.reserved[n].Need.Cost == cost && tokens >= cost && n < maxOwedAsked {
		tokens -= cost
		n++
	}
	return n
}

// takeNames gives names to the first n reservations that a call has asked for. The other
// reservations wait for another call. It returns the reservations whose cost became known during
// the call.
func (d *debt) takeNames(it *item, n int64) (known []*Reservation) {
	for i, r := range it.owed {
		r.asked = false
		if int64(i) < n {
			r.Name = it.name + uint64(i) + 1
			if r.owes { // It may have faded meanwhile.
				d.removeReservation(slices.Index(d.reserved, r))
			}
		}
		if r.known {
			known = append(known, r)
		}
	}
	it.owed = nil
	return known
}

// settleUncharged settles a reservation that the control plane has not charged. It reports false if
// the control plane has charged it.
func (ds *debts) settleUncharged(r *Reservation, actual int64) bool {
	switch {
	case r.asked: // The answer says how.
		r.actual, r.known = actual, true
		return true
	case !r.owes:
		return r.Name == 0
	}
	d := ds.byBucket[r.Need.Bucket]
	d.removeReservation(slices.Index(d.reserved, r))
	d.tokens = max(d.tokens+actual-r.Need.Cost, 0)
	if r.Tally != nil {
		r.Tally.CountSettled((r.Need.Cost - actual) * quota.Parts)
	}
	return true
}

// chargeableTokens returns the number of tokens that can be charged now.
func (d *debt) chargeableTokens(now quota.Instant) int64 {
	if d.asked > 0 || now < d.at {
		return 0
	}
	free := max(d.tokens-d.held, 0)
	if plain := d.forgetPaid(); plain > 0 || len(d.reserved) == 0 {
		return min(free, plain, maxDue)
	}
	return int64(d.countAlike(free)) * d.reserved[0].Need.Cost
}

// chargeItem returns the item that charges a debt. For an optimistic bucket it reports used tokens,
// which count even if the bucket lacks them. For other buckets it asks like waiting requests of
// cost 1. Reservations ask like their own requests.
func (d *debt) chargeItem(need Need, tokens int64) item {
	d.asked = tokens
	need.Cost = 1
	it := item{kind: charges, need: need, debt: d, waiting: tokens}
	if need.Optimistic {
		it.waiting, it.used = 0, tokens
	}
	if it.need.Reserves = d.forgetPaid() == 0 && len(d.reserved) > 0; it.need.Reserves {
		it.need.Cost = d.reserved[0].Need.Cost
		it.waiting = tokens / it.need.Cost
		it.owed = slices.Clone(d.reserved[:it.waiting])
		for _, r := range it.owed {
			r.asked = true
		}
	}
	return it
}

// gatherItems returns items for the first debts that are due, at most most items, and forgets paid
// debts.
func (ds *debts) gatherItems(now quota.Instant, most int) (items []item) {
	rest := ds.all[:0]
	for _, d := range ds.all {
		if d.tokens == 0 && d.held+d.asked == 0 {
			d.forgetPaid()
			delete(ds.byBucket, d.need.Bucket)
			continue
		}
		d.index = len(rest)
		rest = append(rest, d)
		fits := len(items) < most && sameSet(items, d.need.Version)
		if tokens := d.chargeableTokens(now); tokens > 0 && fits {
			items = append(items, d.chargeItem(d.need, tokens))
		}
	}
	clear(ds.all[len(rest):])
	ds.all = rest
	return items
}

// rise swaps a debt with the debt before it if it has become larger.
func (ds *debts) rise(d *debt) {
	if d.index == 0 || ds.all[d.index-1].tokens >= d.tokens {
		return
	}
	other := ds.all[d.index-1]
	ds.all[d.index-1], ds.all[d.index] = d, other
	d.index--
	other.index++
}
