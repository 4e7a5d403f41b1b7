package localstore

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/quota"
)

// docOf reads a document from the meta bucket: its name → big-endian revision and value. The value
// is valid during the transaction.
func docOf(tx *bolt.Tx, name docs.Name) (d docs.Doc) {
	if stored := tx.Bucket(metaBucket).Get([]byte(name)); len(stored) >= 8 {
		d.Revision, d.Value = readNumber(stored[:8]), stored[8:]
	}
	return d
}

// Document implements docs.Store.
func (s *Store) Document(_ context.Context, name docs.Name, known uint64) (d docs.Doc, _ quota.Instant, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		d = docOf(tx, name)
		if d.Revision == known {
			d.Value = nil
		} else {
			d.Value = append([]byte{}, d.Value...)
		}
		return nil
	})
	return d, s.clock.now(), err
}

// WriteDocument implements docs.Store.
func (s *Store) WriteDocument(ctx context.Context, name docs.Name, w docs.Write) error {
	value := append(versionKey(w.Revision), w.Value...)
	return s.updateFile(ctx, func(tx *bolt.Tx) error {
		if docOf(tx, name).Revision != w.Expected {
			return errs.Conflict
		}
		for _, e := range w.Entries {
			if err := s.recordEntry(tx, auditMeta, e); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put([]byte(name), value)
	})
}
