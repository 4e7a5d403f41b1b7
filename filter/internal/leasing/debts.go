package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	// maxDebts bounds the buckets whose debts a VM keeps in mind. If there are more, small debts
	// are forgotten.
	maxDebts = 1024
	// maxCharged bounds the debts of a call that the tick makes: they must not make calls late in
	// which requests wait.
	maxCharged = 16
	// maxDue is far above what one bucket owes, and far below what a message can carry.
	maxDue = 1 << 16
	// maxOwed bounds the reservations that a VM remembers of what shares have let through, and
	// maxOwedOf those of a bucket. One more costs what it has reserved.
	maxOwed   = 4096
	maxOwedOf = 1024
	// maxOwedAsked bounds those of an item: if its call has no answer, each is settled alone.
	maxOwedAsked = 128
)

// debts are the tokens of central buckets that this VM's requests took from the node's shares and
// that the control plane has not charged. The next call for the bucket asks it to charge them
// first, or the tick does. The zero value is empty.
type debts struct {
	byBucket map[keyhash.Key]*debt
	// all are the same debts. Those that grow rise to the front; the last is forgotten first.
	all []*debt
	// call is the tick's, which is under way; nil: none is.
	call *call
	// next is when the tick looks for debts to charge.
	next quota.Instant
	// away is since when the control plane does not answer; 0 if it does.
	away quota.Instant
	// owed is how many reservations the debts have.
	owed int
}

// debt is what the control plane has not charged of one bucket.
type debt struct {
	// in are the debts that it is one of.
	in     *debts
	need   Need
	tokens int64
	// held are those of them that a late call may have charged, which is not answered yet.
	held int64
	// fadesFrom is when they begin to fade in an outage. Before that the bucket is not full, so
	// what it earns is not lost.
	fadesFrom quota.Instant
	// at is when to ask for them again, if they could not be charged.
	at quota.Instant
	// asked are those of them that a call under way asks for; 0: none does.
	asked int64
	// reserved are those of requests whose cost is known later.
	reserved []*Reservation
	// index is the debt's among all.
	index int
}

// heldDebt are tokens that wait for the end of a late call.
type heldDebt struct {
	debt   *debt
	tokens int64
}

// of is the debt of a bucket, with the newest need; nil if there is no room for another.
func (ds *debts) of(need Need) *debt {
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

// makeRoom forgets a small debt if there are too many.
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

// pay counts tokens of a bucket that the control plane has charged, and no request used, for its
// debt. It returns how many are left.
func (ds *debts) pay(bucket keyhash.Key, tokens int64) (left int64) {
	d := ds.byBucket[bucket]
	if d == nil {
		return tokens
	}
	paid := min(tokens, d.tokens)
	d.tokens -= paid
	return tokens - paid
}

// payFree is pay with tokens that are of other use: it pays nothing that a call may charge, or has
// charged, but the one that brought them.
func (ds *debts) payFree(bucket keyhash.Key, tokens int64, by *call) (left int64) {
	paid := ds.paying(bucket, tokens, by)
	ds.pay(bucket, paid)
	return tokens - paid
}

// paying is how many of so many tokens payFree pays with.
func (ds *debts) paying(bucket keyhash.Key, tokens int64, by *call) int64 {
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

// owe notes that a request whose cost is known later has taken its tokens from the share. It
// returns nil if there is no room for another reservation.
func (d *debt) owe(need Need) *Reservation {
	if d.in.owed == maxOwed || len(d.reserved) == maxOwedOf {
		return nil
	}
	r := &Reservation{Need: need, owes: true}
	d.reserved = append(d.reserved, r)
	d.in.owed++
	return r
}

// forget takes the i-th reservation off the debt.
func (d *debt) forget(i int) {
	d.reserved[i].owes = false
	d.reserved = slices.Delete(d.reserved, i, i+1)
	d.in.owed--
}

// forgetPaid takes the first reservations off a debt that has fewer tokens than all of them: the
// bucket has earned the others. It returns how many tokens are of no reservation.
func (d *debt) forgetPaid() (plain int64) {
	plain = d.tokens
	for _, r := range d.reserved {
		plain -= r.Need.Cost
	}
	for plain < 0 && len(d.reserved) > 0 {
		plain += d.reserved[0].Need.Cost
		d.forget(0)
	}
	return plain
}

// alike is how many of the first reservations cost the same and fit into so many tokens.
func (d *debt) alike(tokens int64) (n int) {
	cost := d.reserved[0].Need.Cost
	for n < len(d.reserved) && d.reserved[n].Need.Cost == cost && tokens >= cost && n < maxOwedAsked {
		tokens -= cost
		n++
	}
	return n
}

// named gives reservations that a call has asked for their names, the first n of them. The others
// wait for another call. It returns those that have been settled meanwhile.
func (d *debt) named(it *item, n int64) (known []*Reservation) {
	for i, r := range it.owed {
		r.asked = false
		if int64(i) < n {
			r.Name = it.name + uint64(i) + 1
			if r.owes { // It may have faded meanwhile.
				d.forget(slices.Index(d.reserved, r))
			}
		}
		if r.known {
			known = append(known, r)
		}
	}
	it.owed = nil
	return known
}

// settle settles a reservation that the control plane has not charged. It reports false if it
// has.
func (ds *debts) settle(r *Reservation, actual int64) bool {
	switch {
	case r.asked: // The answer says how.
		r.actual, r.known = actual, true
		return true
	case !r.owes:
		return r.Name == 0
	}
	d := ds.byBucket[r.Need.Bucket]
	d.forget(slices.Index(d.reserved, r))
	d.tokens = max(d.tokens+actual-r.Need.Cost, 0)
	if r.Tally != nil {
		r.Tally.CountSettled((r.Need.Cost - actual) * quota.Parts)
	}
	return true
}

// due is how many tokens can be asked for at now.
func (d *debt) due(now quota.Instant) int64 {
	if d.asked > 0 || now < d.at {
		return 0
	}
	free := max(d.tokens-d.held, 0)
	if plain := d.forgetPaid(); plain > 0 || len(d.reserved) == 0 {
		return min(free, plain, maxDue)
	}
	return int64(d.alike(free)) * d.reserved[0].Need.Cost
}

// ask is the item that asks for a debt. A report counts what was used, if the bucket held it or
// not; of other buckets the debt waits like so many requests. Reservations wait like those that
// they are of.
func (d *debt) ask(need Need, tokens int64) item {
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

// gather asks for the first debts that are due, and forgets those that are paid.
func (ds *debts) gather(now quota.Instant, most int) (items []item) {
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
		if tokens := d.due(now); tokens > 0 && fits {
			items = append(items, d.ask(d.need, tokens))
		}
	}
	clear(ds.all[len(rest):])
	ds.all = rest
	return items
}

// rise lets a debt that has grown change places with a smaller one before it.
func (ds *debts) rise(d *debt) {
	if d.index == 0 || ds.all[d.index-1].tokens >= d.tokens {
		return
	}
	other := ds.all[d.index-1]
	ds.all[d.index-1], ds.all[d.index] = d, other
	d.index--
	other.index++
}
