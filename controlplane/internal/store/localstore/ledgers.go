package localstore

import (
	"context"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	maxBuckets = 500_000
	shardCount = 64
	// sweptAtOnce is the number of shards in which each save looks for ledgers to forget.
	sweptAtOnce = 8
	// windowsKey ends the keys of window ledgers in the file: the two kinds are separate in case a
	// policy changes its algorithm. draftTokensKey and draftWindowsKey end the keys of drafts.
	windowsKey      = 'w'
	draftTokensKey  = 'd'
	draftWindowsKey = 'x'
	permitsKey      = 'p'
	reservationsKey = 'r'
)

type hash = keyhash.Key

// ledgers are the counters. They are in shards with a lock each, so that a save never delays a
// grant for long. A bucket without a ledger is full, unless state was lost lately.
type ledgers struct {
	shards [shardCount]shard
	// lost is the time when the store last noticed a loss of state; 0 for never.
	lost quota.Instant
	// opened is the time when the store was opened.
	opened quota.Instant
	// fill is the initial fill of a bucket whose state was lost, in percent of its burst.
	fill int64
	next int // index of the next shard to sweep
}

// shard holds the ledgers of some buckets, of each kind.
type shard struct {
	mu      sync.Mutex
	room    room
	tokens  table[lease.Ledger]
	windows table[lease.WindowLedger]
	// The drafts are the second ledgers of buckets; nodes with a draft are decided by them.
	draftTokens  table[lease.Ledger]
	draftWindows table[lease.WindowLedger]
	permits      permits
	// kinds are all tables of the shard; drafts come before the tables that they depend on.
	kinds [6]kind
	// reserved are the open reservations.
	reserved reservations
	// returned has the returns that were taken, each with the time until which it could be sent
	// again.
	returned map[returnName]quota.Instant
}

// kind is a table of ledgers of any type.
type kind interface {
	// fileSuffix ends the keys of the table in the file; 0 means no suffix.
	fileSuffix() byte
	// load takes in a saved ledger, whose last changes before the instant lost may be missing. It
	// returns false if it cannot decode the ledger.
	load(key hash, value []byte, lost quota.Instant) bool
	// changes appends the changes since the last save. With sweep it first forgets ledgers that are
	// no longer needed.
	changes(now quota.Instant, sweep bool, out []change) []change
	// markDirty marks that the ledger of a bucket differs from the file.
	markDirty(key hash)
}

func (l *ledgers) init(max int) {
	for i := range l.shards {
		h := &l.shards[i]
		h.reserved.init()
		h.returned = map[returnName]quota.Instant{}
		h.room.max = (max + shardCount - 1) / shardCount
		h.tokens.init(0, nil, &h.room, encodeLedger, decodeLedger)
		h.windows.init(windowsKey, nil, &h.room, encodeWindows, decodeWindows)
		h.draftTokens.init(draftTokensKey, &h.tokens, &h.room, encodeLedger, decodeLedger)
		h.draftWindows.init(draftWindowsKey, &h.windows, &h.room, encodeWindows, decodeWindows)
		h.permits.init()
		h.kinds = [...]kind{&h.draftTokens, &h.draftWindows, &h.tokens, &h.windows, &h.permits, &h.reserved}
	}
}

// kind returns the table with a suffix; nil if there is none.
func (h *shard) kind(suffix byte) kind {
	for _, k := range h.kinds {
		if k.fileSuffix() == suffix {
			return k
		}
	}
	return nil
}

// cutKey splits a key of the file into the bucket's key and the suffix of the kind. ok is false for
// a key of another length.
func cutKey(k []byte) (key hash, suffix byte, ok bool) {
	switch len(k) {
	case len(key):
		return hash(k), 0, true
	case len(key) + 1:
		return hash(k[:len(key)]), k[len(key)], true
	}
	return key, 0, false
}

// of returns the shard of a bucket.
func (l *ledgers) of(key hash) *shard { return &l.shards[key[0]%shardCount] }

// load reads the saved ledgers and returns the number of ledgers that it could not read. Their
// buckets are not known, so nodes may hold permits of any bucket.
func (l *ledgers) load(saved *bolt.Bucket) (damaged int) {
	c := saved.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		value := checkSum(k, v)
		var of kind
		if key, suffix, ok := cutKey(k); ok {
			of = l.of(key).kind(suffix)
		}
		switch {
		case of == nil && value == nil, of != nil && !of.load(hash(k[:len(hash{})]), value, l.lost):
			damaged++
		}
	}
	for i := range l.shards {
		l.shards[i].permits.damaged = damaged > 0
	}
	return damaged
}

// Grant implements leases.Store.
func (s *Store) Grant(_ context.Context, items []leases.Item) ([]lease.Grant, error) {
	grants := make([]lease.Grant, 0, len(items))
	for len(items) > 0 {
		n := leases.Leading(items)
		grants = s.grantGroup(items[:n], grants)
		items = items[n:]
	}
	return grants, nil
}

// grantGroup answers items of one request. It first looks at all of them, and grants only if none
// is short.
func (s *Store) grantGroup(group []leases.Item, grants []lease.Grant) []lease.Grant {
	defer s.ledgers.lock(group)()
	now := s.clock.now()
	all := true
	start := len(grants)
	if len(group) > 1 {
		for _, it := range group {
			g := s.ledgers.grant(now, it, true)
			all = all && !g.Stale && g.NotBefore == 0
			grants = append(grants, g)
		}
	}
	if !all {
		return grants
	}
	grants = grants[:start]
	for _, it := range group {
		g := s.ledgers.grant(now, it, false)
		s.ledgers.of(it.Bucket).reserve(it, g)
		grants = append(grants, g)
	}
	return grants
}

// lock locks the shards of the items, always in the same order, and returns a function that unlocks
// them.
func (l *ledgers) lock(group []leases.Item) (unlock func()) {
	if len(group) == 1 {
		h := l.of(group[0].Bucket)
		h.mu.Lock()
		return h.mu.Unlock
	}
	var wanted [shardCount]bool
	for _, it := range group {
		wanted[it.Bucket[0]%shardCount] = true
	}
	for i, w := range wanted {
		if w {
			l.shards[i].mu.Lock()
		}
	}
	return func() {
		for i, w := range wanted {
			if w {
				l.shards[i].mu.Unlock()
			}
		}
	}
}

// grant answers one item; with look it only computes the answer. The item's shard is locked.
func (l *ledgers) grant(now quota.Instant, it leases.Item, look bool) (g lease.Grant) {
	switch it.Kind {
	case wire.KindAsk, wire.KindReport:
		g = l.grantTokens(now, it, look)
		g.Doubt = g.Tells() && leases.InDoubt(l.lost, now, l.fill, it.Ask)
	case wire.KindClaim:
		g = l.claim(now, it.Bucket, it.Claim)
	case wire.KindSettle:
		g = l.of(it.Bucket).settle(now, it)
	case wire.KindReturn:
		g = l.of(it.Bucket).takeBack(now, it)
	}
	return g
}

// doubt removes tokens from a bucket's ledgers that a crash may have lost track of.
func (h *shard) doubt(now quota.Instant, it leases.Item, percent int64) {
	if it.Ask.Windows.Quota == 0 {
		h.tokens.doubt(it.Bucket, now, it.Ask, percent)
		h.draftTokens.doubt(it.Bucket, now, it.Ask, percent)
		return
	}
	h.windows.doubt(it.Bucket, now, it.Ask, percent)
	h.draftWindows.doubt(it.Bucket, now, it.Ask, percent)
}

// grantTokens answers an ask of tokens or windows.
func (l *ledgers) grantTokens(now quota.Instant, it leases.Item, look bool) lease.Grant {
	h, a := l.of(it.Bucket), it.Ask
	tokens := func(a lease.Ask, percent int64) lease.Ledger { return lease.Fresh(a.Params, a.Version, now, percent) }
	windows := func(a lease.Ask, percent int64) lease.WindowLedger { return lease.FreshWindows(a, now, percent) }
	// A bucket with two ledgers, during a rollout.
	if it.Twin != nil {
		if a.Windows.Quota == 0 {
			return pairs[lease.Ledger]{&h.tokens, &h.draftTokens, l.lost, l.fill, tokens}.grant(now, it, look)
		}
		return pairs[lease.WindowLedger]{&h.windows, &h.draftWindows, l.lost, l.fill, windows}.grant(now, it, look)
	}
	// A bucket with one ledger.
	doubt := now < leases.DoubtfulUntil(l.lost, a)
	if doubt {
		h.doubt(now, it, l.fill)
	}
	if a.Windows.Quota == 0 {
		decide := lease.Ledger.Grant
		if look {
			decide = lease.Ledger.Look
		}
		return h.tokens.grant(now, it, &h.draftTokens, doubt, decide, func(a lease.Ask) lease.Ledger {
			return tokens(a, l.fill)
		})
	}
	decide := lease.WindowLedger.Grant
	if look {
		decide = lease.WindowLedger.Look
	}
	return h.windows.grant(now, it, &h.draftWindows, doubt, decide, func(a lease.Ask) lease.WindowLedger {
		return windows(a, l.fill)
	})
}

// changes returns the changes of all ledgers since the last save, and forgets ledgers that are no
// longer needed in some of the shards. From then on the changes count as saved.
func (l *ledgers) changes(now quota.Instant) []change {
	var out []change
	for i := range l.shards {
		swept := (i-l.next+shardCount)%shardCount < sweptAtOnce
		h := &l.shards[i]
		h.mu.Lock()
		for _, k := range h.kinds {
			out = k.changes(now, swept, out)
		}
		if swept {
			h.forgetReturned(now)
		}
		h.mu.Unlock()
	}
	l.next = (l.next + sweptAtOnce) % shardCount
	return out
}

// dirtyAgain marks changes that could not be saved, so that the next save contains them.
func (l *ledgers) dirtyAgain(changes []change) {
	for _, c := range changes {
		key, suffix, _ := cutKey(c.key)
		h := l.of(key)
		h.mu.Lock()
		h.kind(suffix).markDirty(key)
		h.mu.Unlock()
	}
}
