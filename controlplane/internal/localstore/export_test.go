package localstore

import (
	"bytes"
	"context"
	"errors"

	bolt "go.etcd.io/bbolt"
)

// Break closes the file under the store: nothing can be saved any more.
func (s *Store) Break() {
	if err := s.db.Close(); err != nil {
		panic(err)
	}
}

// Hang has every change of the file wait as for a disk that does not answer, until release: a
// transaction holds the file that does not end.
func (s *Store) Hang() (release func()) {
	tx, err := s.db.Begin(true)
	if err != nil {
		panic(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			panic(err)
		}
	}
}

// HangWithin has a change wait in the middle of its transaction until release ends, and then put a
// value.
func (s *Store) HangWithin(ctx context.Context, release <-chan struct{}) error {
	return s.update(ctx, func(tx *bolt.Tx) error {
		<-release
		return tx.Bucket(metaBucket).Put([]byte("late"), []byte{1})
	})
}

// HasLate reports whether the value of HangWithin is there.
func (s *Store) HasLate() (has bool) {
	_ = s.db.View(func(tx *bolt.Tx) error {
		has = tx.Bucket(metaBucket).Get([]byte("late")) != nil
		return nil
	})
	return has
}

// Earlier is how a build left the file that had no checksum of each counter.
type Earlier struct {
	// Crashed: it has no sums. GoneBackTo: this build had the file before, and a bucket whose key
	// begins with 3 has not changed since.
	Crashed, GoneBackTo bool
}

// Write makes a file that this build has written one of the earlier build.
func (e Earlier) Write(path string) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, saved := tx.Bucket(metaBucket), tx.Bucket(ledgersBucket)
		values := map[string][]byte{}
		err := saved.ForEach(func(k, v []byte) error {
			if !e.GoneBackTo || k[0] != 3 {
				values[string(k)] = bytes.Clone(unsummed(k, v))
			}
			return nil
		})
		for k, v := range values {
			err = errors.Join(err, saved.Put([]byte(k), v))
		}
		clock := bytes.Clone(unsummed(clockKey, meta.Get(clockKey)))
		err = errors.Join(err, meta.Put(clockKey, clock), meta.Delete(sumKey))
		if !e.GoneBackTo {
			err = errors.Join(err, meta.Delete(changedKey))
		}
		if !e.Crashed {
			err = errors.Join(err, seal(tx, ofAll, uint64(tx.ID())))
			err = errors.Join(err, meta.Put(sumKey, bytes.Clone(meta.Get(sumKey)[1:])))
		}
		return err
	})
	return errors.Join(err, db.Close())
}
