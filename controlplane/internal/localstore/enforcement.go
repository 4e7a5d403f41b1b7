package localstore

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
)

// Enforcement implements enforcement.Store.
func (s *Store) Enforcement(context.Context) (d enforcement.Document, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		revision, text := orders(tx)
		d, err = enforcement.Decode(revision, text)
		return err
	})
	return d, err
}

// EnforcementRevision implements enforcement.Store.
func (s *Store) EnforcementRevision(context.Context) (revision uint64, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		revision, _ = orders(tx)
		return nil
	})
	return revision, err
}

// WriteEnforcement implements enforcement.Store.
func (s *Store) WriteEnforcement(ctx context.Context, w enforcement.Write) error {
	text, err := w.Document.Encode()
	if err != nil {
		return err
	}
	return s.update(ctx, func(tx *bolt.Tx) error {
		if revision, _ := orders(tx); revision != w.Expected {
			return errs.Conflict
		}
		for _, e := range w.Entries {
			if err := s.record(tx, auditMeta, e); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(ordersKey, append(versionKey(w.Document.Revision), text...))
	})
}

func orders(tx *bolt.Tx) (revision uint64, text []byte) {
	stored := tx.Bucket(metaBucket).Get(ordersKey)
	if len(stored) < 8 {
		return 0, nil
	}
	return number(stored[:8]), stored[8:]
}
