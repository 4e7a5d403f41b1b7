package penalties

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
)

const (
	perSet = 4
	// fixed is the length of an entry without its groups of refusals. groupSize is the length of a
	// group.
	fixed     = keyhash.Size + 1 + 8 + 8 + 8 + 1
	groupSize = 8 + 4
	stateSize = 16
)

// entry is the process's knowledge of one caller.
type entry struct {
	key keyhash.Key
	penalty.Record
	// revision is the revision up to which the entry has the control plane's changes.
	revision uint64
	// touched is when the entry was last changed, in Unix milliseconds.
	touched int64
	// refusals are the refusals that count for the next offence.
	refusals penalty.Refusals
}

// rank orders entries by importance: a penalty by its end, and any penalty before entries with
// refusals only.
func (e *entry) rank() int64 {
	if e.Level == 0 {
		return e.touched - forever
	}
	return e.Until
}

// forever is more milliseconds than there are between any two instants here.
const forever = 1 << 50

// state is the shared state of the poll: the revision up to which the changes of penalties are
// known, and the revision at which all were pardoned.
type state struct {
	revision, cleared uint64
}

// table keeps entries in shared data, in a fixed number of sets. A flood of callers makes it
// forget, and never makes it grow.
type table struct {
	shared   shareddata.Data
	sets     shareddata.Sets
	stateKey shareddata.Key
	state    state

	// set are the entries of the last opened set, and room for one more entry.
	set   [perSet + 1]entry
	count int
	// next is the value that is being written.
	next []byte
}

// init sets the table's place in the shared data.
func (t *table) init(shared shareddata.Data, space shareddata.Space, sets int) {
	t.shared, t.sets = shared, shareddata.NewSets(shared, space, shareddata.PenaltySet, sets)
	t.stateKey = space.Key(shareddata.PenaltyState)
}

// loadState reads the shared state; an unreadable value changes nothing.
func (t *table) loadState() {
	value, _, found := t.shared.Get(t.stateKey[:])
	if !found || len(value) != stateSize {
		return
	}
	t.state = state{binary.LittleEndian.Uint64(value), binary.LittleEndian.Uint64(value[8:])}
}

// saveState writes the shared state.
func (t *table) saveState() {
	var value [stateSize]byte
	binary.LittleEndian.PutUint64(value[:], t.state.revision)
	binary.LittleEndian.PutUint64(value[8:], t.state.cleared)
	t.shared.Put(t.stateKey[:], value[:])
}

// openSet reads the set of a caller.
func (t *table) openSet(caller keyhash.Key) (cas uint32, found bool) {
	value, cas, found := t.sets.Open(caller)
	t.count = 0
	for b := value; len(b) >= fixed && t.count < perSet; t.count++ {
		groups := int(b[fixed-1])
		end := fixed + groups*groupSize
		if groups > penalty.Marks || end > len(b) {
			break // The value is damaged: drop the rest.
		}
		e := &t.set[t.count]
		copy(e.key[:], b)
		e.Level = int(b[16])
		e.Until = int64(binary.LittleEndian.Uint64(b[17:]))
		e.revision = binary.LittleEndian.Uint64(b[25:])
		e.touched = int64(binary.LittleEndian.Uint64(b[33:]))
		e.refusals.Count = groups
		for i := range groups {
			group := b[fixed+i*groupSize:]
			e.refusals.Groups[i] = penalty.Group{
				First: int64(binary.LittleEndian.Uint64(group)), Count: int64(binary.LittleEndian.Uint32(group[8:])),
			}
		}
		if e.revision < t.state.cleared { // All penalties were pardoned since.
			e.Record, e.refusals.Count = penalty.Record{}, 0
		}
		b = b[end:]
	}
	return cas, found
}

// findEntry returns the entry of a caller; nil if there is none. It is valid until the next call.
func (t *table) findEntry(caller keyhash.Key) *entry {
	t.openSet(caller)
	at := t.indexOf(caller)
	if at == t.count {
		return nil
	}
	return &t.set[at]
}

// updateEntry changes the entry of a caller. Change reports whether it changed the entry, which may
// be new; it may be called several times. updateEntry reports whether the change is stored. It is
// not stored if the set is full of more important entries, or if other workers change the set at
// every attempt.
func (t *table) updateEntry(caller keyhash.Key, now int64, change func(e *entry) bool) (stored bool) {
	for range bucketstore.MaxAttempts {
		cas, found := t.openSet(caller)
		at := t.indexOf(caller)
		one := &t.set[at]
		if at == t.count {
			*one = entry{key: caller}
			t.count++
		}
		if !change(one) {
			return false
		}
		one.touched = now
		if t.count > perSet {
			least := t.leastEntry()
			if least.rank() > one.rank() && !least.mayGo(now) {
				return false
			}
			*least = *one
			t.count = perSet
		}
		t.encodeSet()
		if t.sets.Swap(t.next, cas, found) {
			return true
		}
	}
	return false
}

// indexOf returns the index of a caller's entry in the open set, or of a new entry.
//
//go:noinline
func (t *table) indexOf(caller keyhash.Key) int {
	at := 0
	for at < t.count && t.set[at].key != caller {
		at++
	}
	return at
}

// leastEntry returns the least important entry of a full set.
func (t *table) leastEntry() *entry {
	least := &t.set[0]
	for i := range t.set[:perSet] {
		if t.set[i].rank() < least.rank() {
			least = &t.set[i]
		}
	}
	return least
}

// mayGo reports whether any other entry may replace this entry: it has no penalty, or a penalty
// that ended more than keep ago.
func (e *entry) mayGo(now int64) bool { return e.Level == 0 || e.Until < now-keep }

// keep is the number of milliseconds for which an ended penalty keeps its place before entries with
// refusals only.
const keep = 3_600_000

// encodeSet writes the set into next.
func (t *table) encodeSet() {
	t.next = t.next[:0]
	for i := range t.set[:t.count] {
		e := &t.set[i]
		t.next = append(append(t.next, e.key[:]...), byte(e.Level))
		for _, number := range [...]uint64{uint64(e.Until), e.revision, uint64(e.touched)} {
			t.next = binary.LittleEndian.AppendUint64(t.next, number)
		}
		t.next = append(t.next, byte(e.refusals.Count))
		for _, g := range e.refusals.Groups[:e.refusals.Count] {
			t.next = binary.LittleEndian.AppendUint64(t.next, uint64(g.First))
			t.next = binary.LittleEndian.AppendUint32(t.next, uint32(g.Count))
		}
	}
}
