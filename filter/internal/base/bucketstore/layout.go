package bucketstore

import (
	"encoding/binary"
	"slices"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// All VMs that share the tables agree on their size in shared data: a bucket that one VM has moved
// would look full to a VM that still uses the old size. Each VM reads the size again after
// lookAgain, and a new size is in force switchAfter after the request. So all VMs change at the
// same instant of their common clock. A bucket that is not at its place is then looked for at its
// places in the former sizes, and moves when it is used: moving all buckets at once would stop the
// proxy for tens of milliseconds.
const (
	lookAgain   = 50 * quota.Millisecond
	switchAfter = 250 * quota.Millisecond
	// maxSizes bounds the remembered sizes, including the size in force.
	maxSizes = 4
)

// layout is a VM's knowledge of the tables' size, in slots: the last requested size, the size
// before it, and so on.
type layout struct {
	key   shareddata.Key
	from  quota.Instant
	slots [maxSizes]uint32
	count int
	next  quota.Instant
	// wish is a size to request once the last size is in force; 0: there is none.
	wish  uint32
	value [8 + 4*maxSizes]byte
}

// sizes returns the size in force at now, and after it the former sizes.
func (l *layout) sizes(now quota.Instant) []uint32 {
	if now < l.from && l.count > 1 {
		return l.slots[1:l.count]
	}
	return l.slots[:l.count]
}

// follow reads the size again when it is due.
func (l *layout) follow(shared shareddata.Data, now quota.Instant) {
	if now < l.next {
		return
	}
	l.next = now + quota.Instant(lookAgain)
	value, _, _ := shared.Get(l.key[:])
	if l.decode(value); l.wish != 0 && now >= l.from {
		l.requestSize(shared, l.key, l.wish, now)
	}
}

// decode reads a value; bytes that are no layout change nothing.
func (l *layout) decode(b []byte) {
	n := (len(b) - 8) / 4
	if len(b) != 8+4*n || n < 1 || n > maxSizes {
		return
	}
	for i := range n {
		if binary.LittleEndian.Uint32(b[8+4*i:]) == 0 {
			return
		}
	}
	l.from, l.count = quota.Instant(binary.LittleEndian.Uint64(b)), n
	for i := range n {
		l.slots[i] = binary.LittleEndian.Uint32(b[8+4*i:])
	}
}

// requestSize makes all VMs use tables of slots slots, unless they already do. If the last change
// is not in force yet, it only notes the wish: some VMs may not know that change when it comes into
// force, and all must have the same size at any time.
func (l *layout) requestSize(shared shareddata.Data, key shareddata.Key, slots uint32, now quota.Instant) {
	l.key, l.next = key, now+quota.Instant(lookAgain)
	for range MaxAttempts {
		l.count = 0
		value, cas, found := shared.Get(l.key[:])
		l.decode(value)
		l.wish = 0
		if l.count > 0 && l.slots[0] == slots {
			return
		}
		if l.count > 0 && now < l.from {
			l.wish = slots
			return
		}
		l.from = 0
		if l.count > 0 {
			l.from = now + quota.Instant(switchAfter)
		}
		l.addSize(slots)
		if l.storeLayout(shared, cas, found) {
			return
		}
	}
}

// addSize puts a size before the sizes in force. If the size was in force before, it stays behind
// them too: until the change, buckets that have not moved are found by it.
func (l *layout) addSize(slots uint32) {
	n := 1
	before := l.slots
	for _, size := range before[:l.count] {
		if n < maxSizes && !slices.Contains(l.slots[1:n], size) {
			l.slots[n] = size
			n++
		}
	}
	l.slots[0], l.count = slots, n
}

// storeLayout stores the sizes if no other VM has changed them.
func (l *layout) storeLayout(shared shareddata.Data, cas uint32, found bool) bool {
	b := l.value[:8+4*l.count]
	binary.LittleEndian.PutUint64(b, uint64(l.from))
	for i, size := range l.slots[:l.count] {
		binary.LittleEndian.PutUint32(b[8+4*i:], size)
	}
	return shareddata.Swap(shared, l.key[:], b, cas, found)
}

// lookBack looks for a bucket at its places in the former sizes, if st.entry is new, and for the
// bucket from which it starts. It reports whether it found the bucket, in st.former. If not,
// st.former has the debt of the cells at those places.
func (st *Store) lookBack(kind Kind, key keyhash.Key, now quota.Instant, want *wanted, sizes []uint32) bool {
	number, lacks := binary.LittleEndian.Uint64(key[:8]), Entry{}
	for _, size := range sizes[1:] {
		at := number % uint64(size)
		if at == number%uint64(sizes[0]) {
			continue
		}
		st.setSlot(at)
		value, _, _ := st.shared.Get(st.key[:])
		s := st.formerSlot(kind)
		s.open(value)
		st.former.Kind, st.former.Key = kind, key
		if s.findEntry(&st.former, now, want); st.entry.New && !st.former.New {
			st.formerAt = at
			return true
		}
		lacks.addDebt(&st.former)
	}
	st.former = lacks
	return false
}

// addDebt gives a new entry the debt of another entry.
func (e *Entry) addDebt(other *Entry) {
	e.Debtor, e.Owes = max(e.Debtor, other.Debtor), max(e.Owes, other.Owes)
}

// carryOver starts a new entry from the result of lookBack, and reports whether that was a bucket.
func (st *Store) carryOver(found bool) bool {
	e := &st.entry
	if !found {
		e.addDebt(&st.former)
		return false
	}
	marks := append(e.History.Marks[:0], st.former.History.Marks...)
	*e = st.former
	e.History.Marks = marks
	return true
}

// removeFormer removes a bucket from its former place.
func (st *Store) removeFormer(kind Kind, key keyhash.Key, now quota.Instant, want *wanted) {
	st.setSlot(st.formerAt)
	for range MaxAttempts {
		value, cas, _ := st.shared.Get(st.key[:])
		s := st.formerSlot(kind)
		s.open(value)
		st.former.Kind, st.former.Key = kind, key
		if s.findEntry(&st.former, now, want); st.former.New {
			return // Another VM was faster.
		}
		if st.shared.CompareAndSwap(st.key[:], s.valueWithout(), cas) {
			return
		}
	}
}

// formerSlot returns the slot that reads values of a former size.
func (st *Store) formerSlot(kind Kind) slot {
	if kind == Window {
		return &st.oldWindows
	}
	return &st.oldTokens
}
