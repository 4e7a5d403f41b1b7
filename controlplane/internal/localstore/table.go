package localstore

import (
	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// table holds a shard's ledgers of one kind. Its shard's lock guards it.
type table[L interface{ Forgettable() quota.Instant }] struct {
	all map[hash]L
	// dirty names what differs from the file: to be written, or deleted if it is not in all.
	dirty map[hash]struct{}
	// damaged names what the file holds and nobody can read.
	damaged map[hash]struct{}

	suffix []byte // of keys in the file
	encode func(L) []byte
	decode func([]byte) (L, bool)
}

func (t *table[L]) init(suffix []byte, encode func(L) []byte, decode func([]byte) (L, bool)) {
	*t = table[L]{
		all: map[hash]L{}, dirty: map[hash]struct{}{}, damaged: map[hash]struct{}{}, suffix: suffix, encode: encode, decode: decode,
	}
}

// load takes in what the file holds and reports whether it could be read.
func (t *table[L]) load(key hash, value []byte) bool {
	ledger, ok := t.decode(value)
	if ok {
		t.all[key] = ledger
	} else {
		t.damaged[key] = struct{}{}
	}
	return ok
}

// grant has decide answer the ask from the bucket's ledger, or from a fresh one in doubt, and keeps the ledger that results.
func (t *table[L]) grant(now quota.Instant, it leases.Item, max int, doubtful bool, decide func(L, quota.Instant, lease.Ask) (L, lease.Grant), fresh func() L) lease.Grant {
	ledger, known := t.all[it.Bucket]
	_, damaged := t.damaged[it.Bucket]
	if doubtful = !known && (doubtful || damaged); doubtful {
		ledger = fresh()
	}
	if !known && len(t.all) >= max {
		// To forget another bucket would refill it unseen.
		return lease.Grant{NotBefore: quota.Second}
	}
	ledger, g := decide(ledger, now, it.Ask)
	if g.Changed || doubtful {
		t.all[it.Bucket] = ledger
		t.dirty[it.Bucket] = struct{}{}
		delete(t.damaged, it.Bucket)
	}
	return g
}

// change is what the file must learn about one bucket: its ledger, or without a value that it is forgotten.
type change struct {
	key   []byte
	value []byte
}

func (c change) apply(saved *bolt.Bucket) error {
	if c.value == nil {
		return saved.Delete(c.key)
	}
	return saved.Put(c.key, c.value)
}

func (t *table[L]) changes(now quota.Instant, sweep bool, out []change) []change {
	if sweep {
		for key, ledger := range t.all {
			if ledger.Forgettable() <= now {
				delete(t.all, key)
				t.dirty[key] = struct{}{}
			}
		}
	}
	for key := range t.dirty {
		c := change{key: append(key[:len(key):len(key)], t.suffix...)}
		if ledger, ok := t.all[key]; ok {
			c.value = t.encode(ledger)
		}
		out = append(out, c)
	}
	clear(t.dirty)
	return out
}
