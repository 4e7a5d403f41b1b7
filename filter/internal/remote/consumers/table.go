package consumers

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	perSet  = 4
	maxTier = 63
	// fixed is the length of a record without the tier and the special part. The special part
	// follows the tier, behind two bytes with its length, if hasSpecial is set in the length of the
	// tier.
	fixed      = 16 + 8 + 8 + 1
	hasSpecial = 0x80
	// stateSize is the length of a state.
	stateSize = 4*8 + 1
)

// record is the knowledge about one consumer: its tier, empty for no tier; its special part in the
// form of wire.AppendExceptions; the instant at which this was learned, by a question or a change;
// and the control plane's revision then.
type record struct {
	key           keyhash.Key
	tier, special []byte
	learned       quota.Instant
	revision      uint64
}

// rank orders records by their content: none, a tier, or more.
func (r *record) rank() int {
	switch {
	case len(r.special) > 0:
		return 2
	case len(r.tier) > 0:
		return 1
	}
	return 0
}

// state is the shared state of the poll: the two revisions of the last known change, whether any
// consumer is special, the instant since which records count as current, and when the last poll
// ended.
type state struct {
	revision, exceptionsRevision uint64
	special                      bool
	staleBefore, synced          quota.Instant
}

// table keeps records in shared data, in a fixed number of sets. A flood of consumers makes it
// forget, and never makes it grow.
type table struct {
	shared   shareddata.Data
	sets     shareddata.Sets
	stateKey shareddata.Key
	state    state

	value [stateSize]byte
	set   [perSet]record
	count int
	// read is the value that set refers to, and next the value that is being written.
	read, next []byte
}

// init sets the table's place in the shared data.
func (t *table) init(shared shareddata.Data, space shareddata.Space, sets int) {
	t.shared, t.sets = shared, shareddata.NewSets(shared, space, shareddata.ConsumerSet, sets)
	t.stateKey = space.Key(shareddata.ConsumerState)
}

// loadState reads the state; an unreadable value changes nothing.
func (t *table) loadState() {
	value, _, found := t.shared.Get(t.stateKey[:])
	if !found || len(value) != stateSize {
		return
	}
	t.state = state{
		revision:    binary.LittleEndian.Uint64(value),
		staleBefore: quota.Instant(binary.LittleEndian.Uint64(value[8:])),
		synced:      quota.Instant(binary.LittleEndian.Uint64(value[16:])),

		exceptionsRevision: binary.LittleEndian.Uint64(value[24:]),
		special:            value[stateSize-1] != 0,
	}
}

// saveState writes the state.
func (t *table) saveState() {
	binary.LittleEndian.PutUint64(t.value[:], t.state.revision)
	binary.LittleEndian.PutUint64(t.value[8:], uint64(t.state.staleBefore))
	binary.LittleEndian.PutUint64(t.value[16:], uint64(t.state.synced))
	binary.LittleEndian.PutUint64(t.value[24:], t.state.exceptionsRevision)
	t.value[stateSize-1] = 0
	if t.state.special {
		t.value[stateSize-1] = 1
	}
	t.shared.Put(t.stateKey[:], t.value[:])
}

// openSet reads the set of a consumer.
func (t *table) openSet(consumer keyhash.Key) (cas uint32, found bool) {
	value, cas, found := t.sets.Open(consumer)
	t.read = append(t.read[:0], value...) // The host's bytes are valid only until the next call.
	t.count = 0
	for b := t.read; len(b) >= fixed && t.count < perSet; t.count++ {
		n := int(b[fixed-1] &^ hasSpecial)
		end := fixed + n
		if b[fixed-1] >= hasSpecial && end+2 <= len(b) {
			end += 2 + int(binary.LittleEndian.Uint16(b[end:]))
		}
		if n > maxTier || end > len(b) {
			break // The value is damaged: drop the rest.
		}
		r := &t.set[t.count]
		r.special = nil
		if end > fixed+n {
			r.special = b[fixed+n+2 : end]
		}
		copy(r.key[:], b)
		r.learned = quota.Instant(binary.LittleEndian.Uint64(b[16:]))
		r.revision = binary.LittleEndian.Uint64(b[24:])
		r.tier, b = b[fixed:fixed+n], b[end:]
	}
	return cas, found
}

// findRecord looks a consumer up. The record's tier is valid until the next call.
func (t *table) findRecord(consumer keyhash.Key, r *record) bool {
	t.openSet(consumer)
	for i := range t.set[:t.count] {
		if t.set[i].key == consumer {
			*r = t.set[i]
			return true
		}
	}
	return false
}

// storeRecord stores a record unless a later record is known: a change may overtake the answer to a
// question. If other workers change the set at every attempt, it stores nothing and reports false.
func (t *table) storeRecord(r *record) bool {
	for range bucketstore.MaxAttempts {
		cas, found := t.openSet(r.key)
		if !t.putRecord(r) {
			return true
		}
		t.next = t.next[:0]
		for i := range t.set[:t.count] {
			one := &t.set[i]
			t.next = append(t.next, one.key[:]...)
			t.next = binary.LittleEndian.AppendUint64(t.next, uint64(one.learned))
			t.next = binary.LittleEndian.AppendUint64(t.next, one.revision)
			if len(one.special) == 0 {
				t.next = append(append(t.next, byte(len(one.tier))), one.tier...)
				continue
			}
			t.next = append(append(t.next, byte(len(one.tier))|hasSpecial), one.tier...)
			t.next = binary.LittleEndian.AppendUint16(t.next, uint16(len(one.special)))
			t.next = append(t.next, one.special...)
		}
		if t.sets.Swap(t.next, cas, found) {
			return true
		}
	}
	return false
}

// putRecord puts a record into the open set, and reports whether it did. A full set drops a record
// without content first, then a record with a tier, whose loss means another limit, and last a
// record with a ban or more. Among equal records it drops the oldest. A record never replaces a
// record with more content that was learned within keep, so invented consumers push no real
// consumers out.
func (t *table) putRecord(r *record) bool {
	at := 0
	for at < t.count && t.set[at].key != r.key {
		at++
	}
	if at < t.count {
		held := &t.set[at]
		if held.revision > r.revision && held.learned >= t.state.staleBefore {
			return false
		}
	} else if t.count < perSet {
		t.count++
	} else {
		at = 0
		for i := range t.set {
			one, worst := &t.set[i], &t.set[at]
			if rank, least := one.rank(), worst.rank(); rank < least || rank == least && one.learned < worst.learned {
				at = i
			}
		}
		if worst := &t.set[at]; r.rank() < worst.rank() && r.learned-worst.learned < quota.Instant(keep) {
			return false
		}
	}
	t.set[at] = *r
	return true
}
