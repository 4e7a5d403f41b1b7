package localstore

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Adjust implements leases.Buckets. The entry is stored before the change, which is in memory like
// all that grants change.
func (s *Store) Adjust(
	_ context.Context, bucket keyhash.Key, ask lease.Ask, c lease.Change, entry audit.Entry,
) (lease.Holding, error) {
	h := s.ledgers.of(bucket)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := s.clock.now()
	doubt := now < leases.DoubtfulUntil(s.ledgers.lost, ask)
	if ask.Windows.Quota == 0 {
		return adjust(s, &h.tokens, now, bucket, ask, c, entry, doubt, lease.Ledger.Adjust, func() lease.Ledger {
			return lease.Fresh(ask.Params, ask.Version, now, s.ledgers.fill)
		})
	}
	fresh := func() lease.WindowLedger {
		return lease.FreshWindows(ask, now, s.ledgers.fill)
	}
	return adjust(s, &h.windows, now, bucket, ask, c, entry, doubt, lease.WindowLedger.Adjust, fresh)
}

// adjust changes a ledger of a table, whose shard is locked.
func adjust[L lease.Counted[L]](
	s *Store, t *table[L], now quota.Instant, bucket hash, ask lease.Ask, c lease.Change, entry audit.Entry, doubt bool,
	change func(L, quota.Instant, lease.Ask, lease.Change) (L, lease.Holding), fresh func() L,
) (lease.Holding, error) {
	ledger, known := t.all[bucket]
	if _, damaged := t.damaged[bucket]; !known && (doubt || damaged) {
		ledger = fresh()
	}
	ledger, held := change(ledger, now, ask, c)
	if c == (lease.Change{}) || held.Stale {
		return held, nil
	}
	err := s.db.Update(func(tx *bolt.Tx) error { return s.record(tx, auditMeta, entry) })
	if err != nil {
		return lease.Holding{}, err
	}
	t.all[bucket] = ledger
	t.dirty[bucket] = struct{}{}
	delete(t.damaged, bucket)
	return held, nil
}
