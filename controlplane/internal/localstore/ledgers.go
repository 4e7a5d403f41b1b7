package localstore

import (
	"context"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	maxBuckets = 500_000
	shardCount = 64
	// sweptAtOnce is how many shards each save looks through for ledgers that can be forgotten.
	sweptAtOnce = 8
)

type hash = [16]byte

// ledgers are the counters, in shards that lock apart so that saving never makes a grant wait long. A bucket that is not here
// is full, unless state has been lost lately.
type ledgers struct {
	shards [shardCount]shard
	// lost is when the store last found that it had lost state, 0 for never.
	lost quota.Instant
	next int // the shard to sweep next
}

type shard struct {
	mu  sync.Mutex
	max int
	all map[hash]lease.Ledger
	// dirty names what differs from the file: to be written, or deleted if it is not in all.
	dirty map[hash]struct{}
	// damaged names what the file holds and nobody can read.
	damaged map[hash]struct{}
}

func (l *ledgers) init(max int) {
	for i := range l.shards {
		l.shards[i] = shard{
			max: (max + shardCount - 1) / shardCount,
			all: map[hash]lease.Ledger{}, dirty: map[hash]struct{}{}, damaged: map[hash]struct{}{},
		}
	}
}

func (l *ledgers) of(key hash) *shard { return &l.shards[key[0]%shardCount] }

// load reads what was saved and returns how many buckets could not be read.
func (l *ledgers) load(saved *bolt.Bucket) (damaged int) {
	c := saved.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if len(k) != len(hash{}) {
			continue
		}
		key := hash(k)
		if ledger, ok := decodeLedger(v); ok {
			l.of(key).all[key] = ledger
			continue
		}
		l.of(key).damaged[key] = struct{}{}
		damaged++
	}
	return damaged
}

// Grant implements leases.Store.
func (s *Store) Grant(_ context.Context, items []leases.Item) ([]lease.Grant, error) {
	grants := make([]lease.Grant, len(items))
	for i, it := range items {
		grants[i] = s.ledgers.of(it.Bucket).grant(s.clock.now(), it, s.ledgers.lost)
	}
	return grants, nil
}

func (h *shard) grant(now quota.Instant, it leases.Item, lost quota.Instant) lease.Grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	ledger, known := h.all[it.Bucket]
	doubtful := false
	if !known {
		if len(h.all) >= h.max {
			// To forget another bucket would refill it unseen.
			return lease.Grant{NotBefore: quota.Second}
		}
		_, doubtful = h.damaged[it.Bucket]
		doubtful = doubtful || lost > 0 && now < lost+quota.Instant(leases.Doubtful(it.Ask.Params))
	}
	if doubtful {
		ledger = lease.Fresh(it.Ask.Params, it.Ask.Version, now, leases.LostFill)
	}
	ledger, g := ledger.Grant(now, it.Ask)
	if g.Changed || doubtful {
		h.all[it.Bucket] = ledger
		h.dirty[it.Bucket] = struct{}{}
		delete(h.damaged, it.Bucket)
	}
	return g
}

// change is what the file must learn about one bucket: its ledger, or without a value that it is forgotten.
type change struct {
	key   hash
	value []byte
}

func (c change) apply(saved *bolt.Bucket) error {
	if c.value == nil {
		return saved.Delete(c.key[:])
	}
	return saved.Put(c.key[:], c.value)
}

// changes forgets what can be forgotten in some of the shards and returns what differs from the file, from then on taken to
// be saved.
func (l *ledgers) changes(now quota.Instant) []change {
	var out []change
	for i := range l.shards {
		swept := (i-l.next+shardCount)%shardCount < sweptAtOnce
		out = l.shards[i].changes(now, swept, out)
	}
	l.next = (l.next + sweptAtOnce) % shardCount
	return out
}

func (h *shard) changes(now quota.Instant, sweep bool, out []change) []change {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sweep {
		for key, ledger := range h.all {
			if ledger.Forgettable() <= now {
				delete(h.all, key)
				h.dirty[key] = struct{}{}
			}
		}
	}
	for key := range h.dirty {
		c := change{key: key}
		if ledger, ok := h.all[key]; ok {
			c.value = encodeLedger(ledger)
		}
		out = append(out, c)
	}
	clear(h.dirty)
	return out
}

// dirtyAgain takes back changes that could not be saved.
func (l *ledgers) dirtyAgain(changes []change) {
	for _, c := range changes {
		h := l.of(c.key)
		h.mu.Lock()
		h.dirty[c.key] = struct{}{}
		h.mu.Unlock()
	}
}
