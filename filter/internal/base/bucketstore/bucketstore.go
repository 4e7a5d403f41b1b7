// Package bucketstore keeps buckets in Envoy's shared data, which all workers of a process see, in
// two tables with a fixed number of slots. A slot is one value with a few entries, changed by
// compare-and-swap. Shared data can neither delete nor expire keys and has no bound. So the number
// of keys is fixed here, and a flood of new buckets cannot grow it: a table for n keys has n/8
// slots of at most 1160 bytes for token buckets, and n/8 slots of at most 4 KiB for buckets that
// count in windows.
//
// A slot without room evicts the entry that is nearest to a full bucket, because a full bucket
// equals an absent bucket. If the entry still owed tokens, a cell of the slot keeps the instant at
// which it would have been full, and a key without an entry starts with the debt of its cell. So no
// caller gets a fresh bucket by pushing out an old bucket.
package bucketstore

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// Change reads and changes one entry. Apply may run more than once for one Update, each time on the
// newest state, and must not keep e. If it returns false, nothing is stored.
type Change interface {
	Apply(e *Entry) (write bool)
}

// ErrContended: other workers changed the slot at every attempt. Nothing was stored.
var ErrContended = errors.New("cannot change the bucket: other workers changed its slot at every attempt")

const (
	// MaxAttempts bounds the compare-and-swap loop. An attempt fails only because another worker's
	// attempt succeeded. So with n workers that do nothing but change one slot, an attempt fails
	// with a probability of at most 1 - 1/n.
	MaxAttempts = 1000

	entriesPerSlot = 8
)

// Store gives one VM access to the tables. Like the VM it is single-threaded; the VMs share the
// data.
type Store struct {
	// Figures are the figures of the next Update's bucket, if figures are apart; see Apart.
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

	// These are the slots, the entry and the slot number of a bucket that is looked for in a table
	// of a former size.
	oldTokens  tokenSlot
	oldWindows windowSlot
	former     Entry
	formerAt   uint64

	// Evictions counts entries evicted before they were idle. Retries counts attempts after the
	// first. Contended counts updates given up after MaxAttempts.
	Evictions, Retries, Contended uint64
}

// slot reads and writes the values of one table. It holds the value that is being changed.
type slot interface {
	// open takes a value, which must stay valid until putEntry. Bytes that this version cannot read
	// count as absent.
	open(value []byte)
	// findEntry decodes the entry of e.Kind and e.Key into e, or prepares a new entry.
	findEntry(e *Entry, now quota.Instant, w *wanted)
	// putEntry makes the value with e in it. It returns the number of entries that it evicted
	// before they were idle.
	putEntry(e *Entry, now quota.Instant) (value []byte, evicted uint64)
	// valueWithout makes the value without the entry that findEntry found.
	valueWithout() (value []byte)
}

// New makes tables for about keys buckets each in the name space, which separates plugins that
// share the data. All users of the tables use the size that was last asked for; see layout.
func New(shared shareddata.Data, space shareddata.Space, keys int, now quota.Instant) *Store {
	st := &Store{shared: shared}
	copy(st.key[:], space[:])
	st.layout.requestSize(shared, space.Key(shareddata.TableSizes), uint32(max(keys/entriesPerSlot, 1)), now)
	return st
}

// Update applies c to the entry of a kind and key. A missing entry is new. It tries MaxAttempts
// times.
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
	want, looked, carried := st.wantedFor(kind), len(sizes) == 1, false
	for attempt := range MaxAttempts {
		if attempt > 0 {
			st.Retries++
		}
		st.setSlot(slotNumber)
		cas, exists := st.readEntry(s, now, want)
		// A bucket that is not at its place may still be at its place in a table of a former size.
		// So may the bucket from which it starts.
		if !looked && !want.isSettled(&st.entry) {
			carried, looked = st.lookBack(kind, key, now, want, sizes), true
			st.setSlot(slotNumber)
			cas, exists = st.readEntry(s, now, want) // The bytes of the first read are no longer valid.
		}
		if st.entry.New && len(sizes) > 1 && st.carryOver(carried) {
			// Move the bucket unchanged, whatever the request does: it must be here when the former
			// size is dropped.
			if next, evicted := s.putEntry(&st.entry, now); st.storeValue(next, cas, exists) {
				st.Evictions += evicted
				st.removeFormer(kind, key, now, want)
			}
			looked = false // Its start may be at another former place.
			continue
		}
		want.startEntry(&st.entry)
		e := &st.entry
		e.Heir = (e.New || e.Heir) && e.Debtor > now
		// Decide, and store only if the decision changes the bucket. If another worker was faster,
		// start again from the newest state.
		began := st.entry.Generation
		if !c.Apply(&st.entry) {
			return nil
		}
		st.setBegan(began, now)
		next, evicted := s.putEntry(&st.entry, now)
		if st.storeValue(next, cas, exists) {
			st.Evictions += evicted
			return nil
		}
	}
	st.Contended++
	return ErrContended
}

// readEntry finds st.entry in its slot.
func (st *Store) readEntry(s slot, now quota.Instant, want *wanted) (cas uint32, exists bool) {
	kind, key := st.entry.Kind, st.entry.Key
	value, cas, exists := st.shared.Get(st.key[:])
	s.open(value)
	st.entry.Kind, st.entry.Key = kind, key
	s.findEntry(&st.entry, now, want)
	return cas, exists
}

// Tick reads changes of the tables' size.
func (st *Store) Tick(now quota.Instant) { st.layout.follow(st.shared, now) }

// NextDue returns when Tick must be called next even if there is no Update.
func (st *Store) NextDue() quota.Instant {
	if st.layout.wish == 0 {
		return quota.Forever
	}
	return max(st.layout.next, st.layout.from)
}

// setSlot sets the key to the key of a slot.
func (st *Store) setSlot(slot uint64) {
	st.key[5], st.key[6], st.key[7] = byte(slot), byte(slot>>8), byte(slot>>16)
}

// storeValue stores a slot's value if no other worker has changed it.
func (st *Store) storeValue(value []byte, cas uint32, exists bool) bool {
	return shareddata.Swap(st.shared, st.key[:], value, cas, exists)
}
