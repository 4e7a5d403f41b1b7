package bucketstore

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// All who share the tables agree on their size in shared data. Each reads it again after lookAgain, and another size is in force
// switchAfter it was asked for, so all change over at the same instant of the clock that they share. A bucket that is not at its
// place is then looked for where the former sizes have it, and moves.
const (
	lookAgain   = 50 * quota.Millisecond
	switchAfter = 250 * quota.Millisecond
	// maxSizes bounds the sizes that are remembered, the one in force included.
	maxSizes = 4
)

// layout is a VM's view of the tables' size, in slots: the last size that was asked for, the one before it, and so on.
type layout struct {
	key   shareddata.Key
	from  quota.Instant
	slots [maxSizes]uint32
	count int
	next  quota.Instant
	// wish is a size to ask for once the one that was asked for is in force; 0 for none.
	wish  uint32
	value [8 + 4*maxSizes]byte
}

// sizes are the size in force at now and the former ones.
func (l *layout) sizes(now quota.Instant) []uint32 {
	if now < l.from && l.count > 1 {
		return l.slots[1:l.count]
	}
	return l.slots[:l.count]
}

// follow reads the size again if it is time.
func (l *layout) follow(shared shareddata.Data, now quota.Instant) {
	if now < l.next {
		return
	}
	l.next = now + quota.Instant(lookAgain)
	value, _, _ := shared.Get(l.key[:])
	if l.read(value); l.wish != 0 && now >= l.from {
		l.ask(shared, l.key, l.wish, now)
	}
}

// read takes in a value; bytes that are none leave the view as it is.
func (l *layout) read(b []byte) {
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

// ask has all use tables of so many slots, unless they do already. Who would change what is not in force yet waits: some may
// not have heard of it when it is to be, and all must have the same size at any time.
func (l *layout) ask(shared shareddata.Data, key shareddata.Key, slots uint32, now quota.Instant) {
	l.key, l.next = key, now+quota.Instant(lookAgain)
	for range MaxAttempts {
		l.count = 0
		value, cas, found := shared.Get(l.key[:])
		l.read(value)
		if l.wish = 0; l.count > 0 && l.slots[0] == slots {
			return
		}
		if l.count > 0 && now < l.from {
			l.wish = slots
			return
		}
		if l.from = 0; l.count > 0 {
			l.from = now + quota.Instant(switchAfter)
		}
		before, n := l.slots, 1
		for _, size := range before[:l.count] {
			if size != slots && n < maxSizes {
				l.slots[n] = size
				n++
			}
		}
		l.slots[0], l.count = slots, n
		if l.store(shared, cas, found) {
			return
		}
	}
}

func (l *layout) store(shared shareddata.Data, cas uint32, found bool) bool {
	b := l.value[:8+4*l.count]
	binary.LittleEndian.PutUint64(b, uint64(l.from))
	for i, size := range l.slots[:l.count] {
		binary.LittleEndian.PutUint32(b[8+4*i:], size)
	}
	if found {
		return shared.CompareAndSwap(l.key[:], b, cas)
	}
	return shared.PutIfAbsent(l.key[:], b)
}

// lookBack looks for a bucket where the former sizes have it, and reports whether it is there: in st.former, which else has the
// debt that the places remember.
func (st *Store) lookBack(kind Kind, key keyhash.Key, now quota.Instant, want *wanted, sizes []uint32) bool {
	number, lacks := binary.LittleEndian.Uint64(key[:8]), Entry{}
	for _, size := range sizes[1:] {
		at := number % uint64(size)
		if at == number%uint64(sizes[0]) {
			continue
		}
		st.at(at)
		value, _, _ := st.shared.Get(st.key[:])
		s := st.old(kind)
		s.open(value)
		st.former.Kind, st.former.Key = kind, key
		if s.find(&st.former, now, want); !st.former.New {
			st.formerAt = at
			return true
		}
		lacks.owe(&st.former)
	}
	st.former = lacks
	return false
}

// owe has a new entry lack what another one does.
func (e *Entry) owe(other *Entry) {
	e.Debtor, e.Owes = max(e.Debtor, other.Debtor), max(e.Owes, other.Owes)
}

// carry has a new entry go on from what lookBack has found, and reports whether that was a bucket.
func (st *Store) carry(found bool) bool {
	e := &st.entry
	if !found {
		e.owe(&st.former)
		return false
	}
	marks := append(e.History.Marks[:0], st.former.History.Marks...)
	*e = st.former
	e.History.Marks = marks
	return true
}

// moves reports whether a bucket that was found at a former place is the one that is wanted, and not one that lends its state.
func (st *Store) moves(want *wanted) bool { return want == nil || st.entry.Generation != 0 }

// remove takes a bucket out of the place that it has moved from. One that has only lent its state to another stays.
func (st *Store) remove(kind Kind, key keyhash.Key, now quota.Instant, want *wanted) {
	st.at(st.formerAt)
	for range MaxAttempts {
		value, cas, _ := st.shared.Get(st.key[:])
		s := st.old(kind)
		s.open(value)
		st.former.Kind, st.former.Key = kind, key
		if s.find(&st.former, now, want); st.former.New || want != nil && st.former.Generation == 0 {
			return // Another VM was first.
		}
		if st.shared.CompareAndSwap(st.key[:], s.without(), cas) {
			return
		}
	}
}

// old is what a slot of a former size is read by.
func (st *Store) old(kind Kind) slot {
	if kind == Window {
		return &st.oldWindows
	}
	return &st.oldTokens
}
