// Package bucketstore keeps buckets in Envoy's shared data, which all workers of a process see: two tables of a fixed number of
// slots, each a value with a few entries, changed by compare-and-swap. Shared data can neither delete nor expire keys and is
// bounded by nothing, so the number of keys is fixed here and a flood of new buckets cannot grow it: a table for n keys has n/8
// slots of at most 1160 bytes for buckets of tokens, and as many of at most 4 KiB for those that count in windows.
//
// A slot that is full gives up the entry nearest to saying nothing: a full local bucket is as good as an absent one. An entry
// evicted earlier leaves the instant at which it would have been full in one of the slot's cells, and a key that has no entry
// starts as far from full as its cell says. So nobody gets a fresh bucket by crowding out an old one.
package bucketstore

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/filter/internal/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// Change decides on one entry. Apply may run more than once for one Update, each time on the newest state, and must not keep
// e. If it returns false nothing is stored.
type Change interface {
	Apply(e *Entry) (write bool)
}

// ErrContended: other workers changed the slot at each of the attempts. Nothing was stored.
var ErrContended = errors.New("bucketstore: the slot changed at every attempt")

const (
	// MaxAttempts bounds the compare-and-swap loop. An attempt fails only because another worker's has succeeded, so of n workers that do
	// nothing but change one slot each fails at one attempt with a probability of 1 - 1/n at most.
	MaxAttempts = 1000

	entriesPerSlot = 8
)

// Store is the tables. Its methods are for one VM, like the VM itself single-threaded; the VMs share the data.
type Store struct {
	// Figures are those of the bucket that the next Update is about, where buckets go by their figures; see Apart.
	Figures Figures

	shared  shareddata.Data
	layout  layout
	key     [8]byte
	tokens  tokenSlot
	windows windowSlot
	entry   Entry

	apart bool
	since quota.Instant
	want  wanted

	// Of a bucket that is looked for in a table of a former size.
	oldTokens  tokenSlot
	oldWindows windowSlot
	former     Entry
	formerAt   uint64

	// Evictions counts entries given up before they were idle, Retries attempts after the first, Contended updates given up after
	// MaxAttempts.
	Evictions, Retries, Contended uint64
}

// slot is the layout of one table's values, with the one that is being changed.
type slot interface {
	// open takes in a value, which stays good until put. Bytes that this version does not read count as absent.
	open(value []byte)
	// find decodes the entry of e.Kind at e.Key into e, or prepares a new one.
	find(e *Entry, now quota.Instant, w *wanted)
	// put makes the value with e in it, and says how many entries before their time had to go for it.
	put(e *Entry, now quota.Instant) (value []byte, evicted uint64)
	// without makes the value without the entry that find has found.
	without() (value []byte)
}

// New makes tables for about keys buckets each in the name space, which keeps plugins that share the data apart. The size holds
// for all who share the tables, the last one to be asked for: see layout.
func New(shared shareddata.Data, space shareddata.Space, keys int, now quota.Instant) *Store {
	st := &Store{shared: shared}
	copy(st.key[:], space[:])
	st.layout.ask(shared, space.Key(shareddata.TableSizes), uint32(max(keys/entriesPerSlot, 1)), now)
	return st
}

// Update applies c to the entry of kind at key, at most MaxAttempts times. A new entry is made if there is none.
func (st *Store) Update(kind Kind, key keyhash.Key, now quota.Instant, c Change) error {
	if now >= st.layout.next+quota.Instant(lookAgain) {
		st.Tick(now) // The worker's own ticks are late.
	}
	sizes := st.layout.sizes(now)
	slotNumber := binary.LittleEndian.Uint64(key[:8]) % uint64(sizes[0])
	var s slot = &st.tokens
	st.key[4] = byte(shareddata.TokenSlot)
	if kind == Window {
		s, st.key[4] = &st.windows, byte(shareddata.WindowSlot)
	}
	st.entry.Kind, st.entry.Key = kind, key
	want, looked, carried := st.wanted(kind), len(sizes) == 1, false
	for attempt := range MaxAttempts {
		if attempt > 0 {
			st.Retries++
		}
		st.at(slotNumber)
		cas, exists := st.read(s, now, want)
		if st.entry.New && !looked {
			carried, looked = st.lookBack(kind, key, now, want, sizes), true
			st.at(slotNumber)
			cas, exists = st.read(s, now, want) // The bytes of the first reading are gone.
		}
		if st.entry.New && len(sizes) > 1 && st.carry(carried) && st.moves(want) {
			// As it is, whatever becomes of the request: it must be found here when the former size is forgotten.
			if next, evicted := s.put(&st.entry, now); st.store(next, cas, exists) {
				st.Evictions += evicted
				st.remove(kind, key, now, want)
			}
			continue
		}
		began := st.entry.Generation
		if !c.Apply(&st.entry) {
			return nil
		}
		st.date(began, now)
		next, evicted := s.put(&st.entry, now)
		if st.store(next, cas, exists) {
			st.Evictions += evicted
			return nil
		}
	}
	st.Contended++
	return ErrContended
}

// read finds st.entry in its slot.
func (st *Store) read(s slot, now quota.Instant, want *wanted) (cas uint32, exists bool) {
	kind, key := st.entry.Kind, st.entry.Key
	value, cas, exists := st.shared.Get(st.key[:])
	s.open(value)
	st.entry.Kind, st.entry.Key = kind, key
	s.find(&st.entry, now, want)
	return cas, exists
}

// Tick follows changes of the tables' size.
func (st *Store) Tick(now quota.Instant) { st.layout.follow(st.shared, now) }

// at makes the key that of a slot.
func (st *Store) at(slot uint64) {
	st.key[5], st.key[6], st.key[7] = byte(slot), byte(slot>>8), byte(slot>>16)
}

func (st *Store) store(value []byte, cas uint32, exists bool) bool {
	if exists {
		return st.shared.CompareAndSwap(st.key[:], value, cas)
	}
	return st.shared.PutIfAbsent(st.key[:], value)
}
