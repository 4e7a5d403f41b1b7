package localstore

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
)

// Current implements policies.Store.
func (s *Store) Current(context.Context) (number uint64, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		number = newest(tx)
		return nil
	})
	return number, err
}

func newest(tx *bolt.Tx) uint64 {
	k, _ := tx.Bucket(versionsBucket).Cursor().Last()
	if k == nil {
		return 0
	}
	return binary.BigEndian.Uint64(k)
}

// Load implements policies.Store.
func (s *Store) Load(_ context.Context, number uint64) (v policies.Version, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		raw := tx.Bucket(versionsBucket).Get(versionKey(number))
		if raw == nil {
			return policies.ErrNotFound
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("version %d is damaged: %w", number, err)
		}
		v.Document = append([]byte{}, tx.Bucket(docsBucket).Get(versionKey(number))...)
		return nil
	})
	return v, err
}

// Append implements policies.Store.
func (s *Store) Append(_ context.Context, expected uint64, v policies.Version, e audit.Entry) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		if newest(tx) != expected || v.Number <= expected {
			return policies.ErrConflict
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		versions, docs := tx.Bucket(versionsBucket), tx.Bucket(docsBucket)
		if err := versions.Put(versionKey(v.Number), raw); err != nil {
			return err
		}
		if err := docs.Put(versionKey(v.Number), v.Document); err != nil {
			return err
		}
		for {
			k, _ := versions.Cursor().First()
			if binary.BigEndian.Uint64(k)+policies.Kept > v.Number {
				return s.record(tx, auditMeta, e)
			}
			if err := versions.Delete(k); err != nil {
				return err
			}
			if err := docs.Delete(k); err != nil {
				return err
			}
		}
	})
}

// List implements policies.Store.
func (s *Store) List(_ context.Context, before uint64, limit int) (out []policies.Version, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(versionsBucket).Cursor()
		k, raw := c.Last()
		if before > 0 {
			if k, _ = c.Seek(versionKey(before)); k == nil {
				k, raw = c.Last()
			} else {
				k, raw = c.Prev()
			}
		}
		for ; k != nil && len(out) < limit; k, raw = c.Prev() {
			var v policies.Version
			if err := json.Unmarshal(raw, &v); err != nil {
				return fmt.Errorf("version %d is damaged: %w", binary.BigEndian.Uint64(k), err)
			}
			out = append(out, v)
		}
		return nil
	})
	return out, err
}

// Secret implements push.Secrets.
func (s *Store) Secret(_ context.Context, candidate [16]byte) (secret [16]byte, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		copy(secret[:], tx.Bucket(metaBucket).Get(secretKey))
		return nil
	})
	if err != nil || secret != [16]byte{} {
		return secret, err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta.Get(secretKey) == nil {
			if err := meta.Put(secretKey, candidate[:]); err != nil {
				return err
			}
		}
		copy(secret[:], meta.Get(secretKey))
		return nil
	})
	return secret, err
}

func versionKey(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }
