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
// all that grants change. Grants of the shard do not wait for the disk.
func (s *Store) Adjust(
	ctx context.Context, bucket keyhash.Key, ask lease.Ask, c lease.Change, entry audit.Entry,
) (lease.Holding, error) {
	if c != (lease.Change{}) {
		if seen := s.adjust(bucket, ask, c, false); seen.Stale {
			return seen, nil
		}
		err := s.update(ctx, func(tx *bolt.Tx) error { return s.record(tx, auditMeta, entry) })
		if err != nil {
			return lease.Holding{}, err
		}
	}
	return s.adjust(bucket, ask, c, c != (lease.Change{})), nil
}

// adjust is what a bucket holds after a change, which it makes or only tries.
func (s *Store) adjust(bucket keyhash.Key, ask lease.Ask, c lease.Change, apply bool) lease.Holding {
	h := s.ledgers.of(bucket)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := s.clock.now()
	doubt := now < leases.DoubtfulUntil(s.ledgers.lost, ask)
	if ask.Windows.Quota == 0 {
		return adjust(&h.tokens, now, bucket, ask, c, apply, doubt, lease.Ledger.Adjust, func() lease.Ledger {
			return lease.Fresh(ask.Params, ask.Version, now, s.ledgers.fill)
		})
	}
	return adjust(&h.windows, now, bucket, ask, c, apply, doubt, lease.WindowLedger.Adjust, func() lease.WindowLedger {
		return lease.FreshWindows(ask, now, s.ledgers.fill)
	})
}

// adjust changes a ledger of a table, whose shard is locked.
func adjust[L lease.Counted[L]](
	t *table[L], now quota.Instant, bucket hash, ask lease.Ask, c lease.Change, apply, doubt bool,
	change func(L, quota.Instant, lease.Ask, lease.Change) (L, lease.Holding), fresh func() L,
) lease.Holding {
	ledger, known := t.all[bucket]
	if _, damaged := t.damaged[bucket]; !known && (doubt || damaged) {
		ledger = fresh()
	}
	ledger, held := change(ledger, now, ask, c)
	if apply && !held.Stale {
		t.all[bucket] = ledger
		t.dirty[bucket] = struct{}{}
		delete(t.damaged, bucket)
	}
	return held
}
