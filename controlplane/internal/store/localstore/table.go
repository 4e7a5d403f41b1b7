package localstore

import (
	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// table holds a shard's ledgers of one kind. The shard's lock guards it.
type table[L lease.Counted[L]] struct {
	all map[hash]L
	// dirty has the ledgers that differ from the file: to be written, or deleted if they are not in
	// all.
	dirty map[hash]struct{}
	// unsure has the saved ledgers whose last changes a crash may have lost.
	unsure map[hash]struct{}
	// damaged has the records of the file that cannot be read.
	damaged map[hash]struct{}

	// suffix ends the keys in the file; 0 means no suffix.
	suffix byte
	room   *room
	// main is the table of the main ledgers, if this table has the drafts; nil for a main table.
	main   *table[L]
	encode func(L) []byte
	decode func([]byte) (L, bool)
}

func (t *table[L]) init(
	suffix byte, main *table[L], room *room, encode func(L) []byte, decode func([]byte) (L, bool),
) {
	*t = table[L]{
		all: map[hash]L{}, dirty: map[hash]struct{}{}, damaged: map[hash]struct{}{}, unsure: map[hash]struct{}{},
		suffix: suffix, room: room, main: main, encode: encode, decode: decode,
	}
}

func (t *table[L]) fileSuffix() byte { return t.suffix }

func (t *table[L]) markDirty(key hash) { t.dirty[key] = struct{}{} }

// load takes in a saved ledger. It returns false if it cannot decode the ledger.
func (t *table[L]) load(key hash, value []byte, lost quota.Instant) bool {
	ledger, ok := t.decode(value)
	if ok {
		t.all[key] = ledger
		if ledger.Touched() <= lost {
			t.unsure[key] = struct{}{}
		}
	} else {
		t.damaged[key] = struct{}{}
	}
	return ok
}

// doubt removes tokens from a ledger that a crash may have lost track of, once.
func (t *table[L]) doubt(key hash, now quota.Instant, ask lease.Ask, percent int64) {
	if _, unsure := t.unsure[key]; !unsure {
		return
	}
	delete(t.unsure, key)
	if ledger, known := t.all[key]; known {
		t.put(key, ledger.Doubted(now, ask, percent))
	}
}

// grant calls decide with the bucket's ledger, or with a fresh ledger in doubt, and stores the
// result. drafts has the second ledgers: a draft's ledger that was promoted replaces the main
// ledger.
func (t *table[L]) grant(
	now quota.Instant, it leases.Item, drafts *table[L], doubtful bool,
	decide func(L, quota.Instant, lease.Ask) (L, lease.Grant), fresh func(lease.Ask) L,
) lease.Grant {
	ledger, known := t.all[it.Bucket]
	ledger = lease.Twins[L]{Main: ledger, Draft: drafts.all[it.Bucket]}.Promoted(it.Ask)
	_, damaged := t.damaged[it.Bucket]
	doubtful = !known && (doubtful || damaged)
	if doubtful {
		ledger = fresh(it.Ask)
	}
	if !known && t.room.lacks(len(t.all)) {
		// To forget another bucket would refill it without a trace.
		return lease.Grant{NotBefore: quota.Second}
	}
	ledger, g := decide(ledger, now, it.Ask)
	if g.Changed || doubtful {
		t.put(it.Bucket, ledger)
	}
	return g
}

func (t *table[L]) put(key hash, ledger L) {
	t.all[key] = ledger
	t.dirty[key] = struct{}{}
	delete(t.damaged, key)
}

// change is a change of one bucket in the file: its ledger, or no value to delete it.
type change struct {
	key   []byte
	value []byte
}

func (c change) apply(saved *bolt.Bucket) error {
	if c.value == nil {
		return saved.Delete(c.key)
	}
	return saved.Put(c.key, addSum(c.key, c.value))
}

// needed reports whether a draft's ledger must be kept because the main ledger still owes tokens:
// an absent draft's ledger would start as a copy of the main ledger.
func (t *table[L]) needed(key hash, now quota.Instant) bool {
	if t.main == nil {
		return false
	}
	main, known := t.main.all[key]
	return known && main.Forgettable() > now
}

func (t *table[L]) changes(now quota.Instant, sweep bool, out []change) []change {
	if sweep {
		for key, ledger := range t.all {
			if ledger.Forgettable() <= now && !t.needed(key, now) {
				delete(t.all, key)
				delete(t.unsure, key)
				t.dirty[key] = struct{}{}
			}
		}
	}
	for key := range t.dirty {
		c := change{key: t.fileKey(key)}
		if ledger, ok := t.all[key]; ok {
			c.value = t.encode(ledger)
		}
		out = append(out, c)
	}
	clear(t.dirty)
	return out
}

// fileKey returns the key of a bucket in the file.
func (t *table[L]) fileKey(key hash) []byte {
	k := append(make([]byte, 0, len(key)+1), key[:]...)
	if t.suffix != 0 {
		k = append(k, t.suffix)
	}
	return k
}
