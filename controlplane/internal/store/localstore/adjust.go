package localstore

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Adjust implements leases.Buckets. The audit entry is stored before the change. The change itself
// is in memory, like all changes by grants. Grants of the shard do not wait for the disk.
func (s *Store) Adjust(
	ctx context.Context, it leases.Item, c lease.Change, entry audit.Entry,
) (lease.Holding, error) {
	if c != (lease.Change{}) {
		if seen := s.adjust(it, c, false); seen.Stale {
			return seen, nil
		}
		if entry.Action != "" {
			err := s.updateFile(ctx, func(tx *bolt.Tx) error { return s.recordEntry(tx, auditMeta, entry) })
			if err != nil {
				return lease.Holding{}, err
			}
		}
	}
	return s.adjust(it, c, c != (lease.Change{})), nil
}

// adjust returns a bucket's state after a change. With apply it makes the change, without it only
// computes.
func (s *Store) adjust(it leases.Item, c lease.Change, apply bool) (held lease.Holding) {
	h := s.ledgers.of(it.Bucket)
	h.mu.Lock()
	defer h.mu.Unlock()
	now, ask := s.clock.now(), it.Ask
	defer func() { held.Doubt = leases.InDoubt(s.ledgers.lost, now, s.ledgers.fill, ask) }()
	doubt := now < leases.DoubtfulUntil(s.ledgers.lost, ask)
	if ask.Windows.Quota == 0 {
		return adjustIn(&h.tokens, &h.draftTokens, now, it, c, apply, doubt, lease.Ledger.Adjust, func() lease.Ledger {
			return lease.Fresh(ask.Params, ask.Version, now, s.ledgers.fill)
		})
	}
	return adjustIn(&h.windows, &h.draftWindows, now, it, c, apply, doubt, lease.WindowLedger.Adjust,
		func() lease.WindowLedger { return lease.FreshWindows(ask, now, s.ledgers.fill) })
}

// adjustIn changes a ledger of a table, or the draft's ledger. The shard is locked.
func adjustIn[L lease.Counted[L]](
	main, drafts *table[L], now quota.Instant, it leases.Item, c lease.Change, apply, doubt bool,
	change func(L, quota.Instant, lease.Ask, lease.Change) (L, lease.Holding), fresh func() L,
) lease.Holding {
	ledger, known := main.all[it.Bucket]
	if _, damaged := main.damaged[it.Bucket]; !known && (doubt || damaged) {
		ledger = fresh()
	}
	t, pair := main, lease.Twins[L]{Main: ledger, Draft: drafts.all[it.Bucket]}
	if ledger = pair.Promoted(it.Ask); it.Draft {
		t, ledger = drafts, pair.Started(it.Ask)
	}
	ledger, held := change(ledger, now, it.Ask, c)
	if apply && !held.Stale {
		t.put(it.Bucket, ledger)
	}
	return held
}
