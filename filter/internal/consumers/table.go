package consumers

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	perSet  = 4
	maxTier = 63
	// fixed is the length of a record without its tier.
	fixed = 16 + 8 + 8 + 1
)

// record is what is known of one consumer: its tier, empty for none, when the control plane was asked for it or told of it, and
// the control plane's revision then.
type record struct {
	key      match.Key
	tier     []byte
	learned  quota.Instant
	revision uint64
}

// state is what all VMs know of the poll: the revision up to which changes are known, since when records count as asked, and when
// the last poll ended.
type state struct {
	revision            uint64
	staleBefore, synced quota.Instant
}

// table keeps records in shared data, in a fixed number of sets: a flood of consumers makes it forget, never grow.
type table struct {
	shared   SharedData
	sets     uint64
	key      [9]byte
	stateKey [5]byte
	state    state

	value [24]byte
	set   [perSet]record
	count int
	// read is the value that set refers to, next the one to be written.
	read, next []byte
}

func (t *table) init(shared SharedData, space [4]byte, sets int) {
	t.shared, t.sets = shared, uint64(max(sets, 1))
	copy(t.key[:], space[:])
	copy(t.stateKey[:], space[:])
	t.key[4], t.stateKey[4] = 'u', 'r'
}

// loadState reads the state; what cannot be read leaves it as it is.
func (t *table) loadState() {
	value, _, found := t.shared.Get(t.stateKey[:])
	if !found || len(value) != len(t.value) {
		return
	}
	t.state = state{
		revision:    binary.LittleEndian.Uint64(value),
		staleBefore: quota.Instant(binary.LittleEndian.Uint64(value[8:])),
		synced:      quota.Instant(binary.LittleEndian.Uint64(value[16:])),
	}
}

func (t *table) saveState() {
	binary.LittleEndian.PutUint64(t.value[:], t.state.revision)
	binary.LittleEndian.PutUint64(t.value[8:], uint64(t.state.staleBefore))
	binary.LittleEndian.PutUint64(t.value[16:], uint64(t.state.synced))
	t.shared.Put(t.stateKey[:], t.value[:])
}

// open reads the set of a consumer.
func (t *table) open(consumer match.Key) (cas uint32, found bool) {
	set := binary.LittleEndian.Uint64(consumer[:8]) % t.sets
	binary.LittleEndian.PutUint32(t.key[5:], uint32(set))
	value, cas, found := t.shared.Get(t.key[:])
	t.read = append(t.read[:0], value...) // The host's bytes are good until the next call only.
	t.count = 0
	for b := t.read; len(b) >= fixed && t.count < perSet; t.count++ {
		n := int(b[fixed-1])
		if n > maxTier || n > len(b)-fixed {
			break // Damage: what follows is forgotten.
		}
		r := &t.set[t.count]
		copy(r.key[:], b)
		r.learned = quota.Instant(binary.LittleEndian.Uint64(b[16:]))
		r.revision = binary.LittleEndian.Uint64(b[24:])
		r.tier, b = b[fixed:fixed+n], b[fixed+n:]
	}
	return cas, found
}

// find looks a consumer up. The record's tier is good until the next call.
func (t *table) find(consumer match.Key, r *record) bool {
	t.open(consumer)
	for i := range t.set[:t.count] {
		if t.set[i].key == consumer {
			*r = t.set[i]
			return true
		}
	}
	return false
}

// learn stores a record unless a later one is known, as when a change overtakes the answer to a question. If others change the
// set at every attempt it stores nothing: somebody will ask again.
func (t *table) learn(r record) {
	if len(r.tier) > maxTier {
		return
	}
	for range bucketstore.MaxAttempts {
		cas, found := t.open(r.key)
		if !t.put(r) {
			return
		}
		t.next = t.next[:0]
		for _, one := range t.set[:t.count] {
			t.next = append(t.next, one.key[:]...)
			t.next = binary.LittleEndian.AppendUint64(t.next, uint64(one.learned))
			t.next = binary.LittleEndian.AppendUint64(t.next, one.revision)
			t.next = append(append(t.next, byte(len(one.tier))), one.tier...)
		}
		if found && t.shared.CompareAndSwap(t.key[:], t.next, cas) || !found && t.shared.PutIfAbsent(t.key[:], t.next) {
			return
		}
	}
}

// put brings a record into the open set and reports whether it has. A full set gives up who has no tier before who has one, for
// whom forgetting means another limit, and of those the one that was learned first; who has none takes the place of nobody who
// has one and was asked for lately, so invented consumers crowd out nobody.
func (t *table) put(r record) bool {
	at := 0
	for at < t.count && t.set[at].key != r.key {
		at++
	}
	if at < t.count {
		if held := &t.set[at]; held.revision > r.revision && held.learned >= t.state.staleBefore {
			return false
		}
	} else if t.count < perSet {
		t.count++
	} else {
		at = 0
		for i := range t.set {
			one, worst := &t.set[i], &t.set[at]
			if bare, other := len(one.tier) == 0, len(worst.tier) == 0; bare && !other || bare == other && one.learned < worst.learned {
				at = i
			}
		}
		if worst := &t.set[at]; len(r.tier) == 0 && len(worst.tier) > 0 && r.learned-worst.learned < quota.Instant(keep) {
			return false
		}
	}
	t.set[at] = r
	return true
}
