// Package bucketstore keeps buckets in Envoy's shared data, which all workers of a process see: a table of a fixed number of
// slots, each a value with a few entries, changed by compare-and-swap. Shared data can neither delete nor expire keys and is
// bounded by nothing, so the number of keys is fixed here and a flood of new buckets cannot grow it.
//
// A slot that is full gives up the entry nearest to saying nothing: a full local bucket is as good as an absent one. An entry
// evicted earlier leaves the instant at which it would have been full in one of the slot's cells, and a key that has no entry
// starts as far from full as its cell says. So nobody gets a fresh bucket by crowding out an old one.
package bucketstore

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

// SharedData is Envoy's shared data. Get's value is good until the next call that returns bytes. CompareAndSwap stores value
// if the key's cas is unchanged since Get; PutIfAbsent if it has no value. Both report whether they stored.
type SharedData interface {
	Get(key []byte) (value []byte, cas uint32, found bool)
	PutIfAbsent(key, value []byte) bool
	CompareAndSwap(key, value []byte, cas uint32) bool
}

// Change decides on one entry. Apply may run more than once for one Update, each time on the newest state, and must not keep
// e. If it returns false nothing is stored, so a flood of refusals causes no contention.
type Change interface {
	Apply(e *Entry) (write bool)
}

// ErrContended: other workers changed the slot at each of the attempts. Nothing was stored.
var ErrContended = errors.New("bucketstore: the slot changed at every attempt")

const (
	// MaxAttempts bounds the compare-and-swap loop.
	MaxAttempts = 8

	entriesPerSlot = 8
	cellsPerSlot   = 16
	headerSize     = 8
	cellsSize      = cellsPerSlot * 8
	slotSize       = headerSize + cellsSize + entriesPerSlot*entrySize
	magic          = "WRS1"
)

// Store is the table. Its methods are for one VM, like the VM itself single-threaded; the VMs share the data.
type Store struct {
	shared SharedData
	slots  uint64
	key    [8]byte
	slot   [slotSize]byte
	entry  Entry

	// Evictions counts entries given up before they were idle, Contended updates given up after MaxAttempts.
	Evictions, Contended uint64
}

// New makes a table for about keys buckets in the name space, which keeps plugins that share the data apart.
func New(shared SharedData, space [4]byte, keys int) *Store {
	st := &Store{shared: shared, slots: uint64(max(keys/entriesPerSlot, 1))}
	copy(st.key[:], space[:])
	st.key[4] = 's'
	return st
}

// Update applies c to the entry of kind at key, at most MaxAttempts times. A new entry is made if there is none.
func (st *Store) Update(kind Kind, key match.Key, now quota.Instant, c Change) error {
	slot := binary.LittleEndian.Uint64(key[:8]) % st.slots
	st.key[5], st.key[6], st.key[7] = byte(slot), byte(slot>>8), byte(slot>>16)
	for range MaxAttempts {
		value, cas, exists := st.shared.Get(st.key[:])
		st.open(value)
		at, evicted := st.find(kind, key, now)
		if !c.Apply(&st.entry) {
			return nil
		}
		if evicted {
			st.remember(at, now)
		}
		st.entry.encode(st.record(at))
		if st.store(cas, exists) {
			if evicted {
				st.Evictions++
			}
			return nil
		}
	}
	st.Contended++
	return ErrContended
}

// open takes in a slot. Bytes that this version does not read count as absent and will be overwritten.
func (st *Store) open(value []byte) {
	if len(value) == slotSize && hasMagic(value) {
		copy(st.slot[:], value)
		return
	}
	clear(st.slot[:])
	copy(st.slot[:], magic)
}

func (st *Store) store(cas uint32, exists bool) bool {
	if exists {
		return st.shared.CompareAndSwap(st.key[:], st.slot[:], cas)
	}
	return st.shared.PutIfAbsent(st.key[:], st.slot[:])
}

// find decodes the entry of kind at key into st.entry and says where it is. If there is none it prepares a new one in a free
// place or, evicted, in the place of the entry that is idle first.
func (st *Store) find(kind Kind, key match.Key, now quota.Instant) (at int, evicted bool) {
	first := quota.Instant(0)
	for i := range entriesPerSlot {
		record := st.record(i)
		if Kind(record[atKind]) == kind && sameKey(record, &key) && st.entry.decode(record) {
			return i, false
		}
		idle := quota.Instant((&coder{b: record, at: atIdle}).i64())
		if i == 0 || idle < first {
			at, first = i, idle
		}
	}
	st.entry = Entry{Kind: kind, Key: key, New: true, Debtor: st.cell(&key)}
	return at, first > now
}

// remember leaves in its cell when the entry at a place would have been full. Leased entries leave nothing: the centre has
// counted their tokens as used.
func (st *Store) remember(at int, now quota.Instant) {
	record := st.record(at)
	if Kind(record[atKind]) == Leased {
		return
	}
	var key match.Key
	copy(key[:], record)
	idle := quota.Instant((&coder{b: record, at: atIdle}).i64())
	c := coder{b: st.slot[:], at: cellOffset(&key)}
	c.putI64(int64(max(idle, st.cell(&key))))
}

func (st *Store) cell(key *match.Key) quota.Instant {
	return quota.Instant((&coder{b: st.slot[:], at: cellOffset(key)}).i64())
}

func cellOffset(key *match.Key) int { return headerSize + int(key[8]%cellsPerSlot)*8 }

func (st *Store) record(i int) []byte {
	from := headerSize + cellsSize + i*entrySize
	return st.slot[from : from+entrySize]
}

func hasMagic(value []byte) bool {
	for i := range len(magic) {
		if value[i] != magic[i] {
			return false
		}
	}
	return true
}

func sameKey(record []byte, key *match.Key) bool {
	for i := range key {
		if record[i] != key[i] {
			return false
		}
	}
	return true
}
