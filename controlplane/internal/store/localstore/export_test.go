package localstore

import (
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

// HangWithin makes a change that waits in the middle of its transaction until release ends, and
// then puts a value.
func (s *Store) HangWithin(ctx context.Context, release <-chan struct{}) error {
	return s.updateFile(ctx, func(tx *bolt.Tx) error {
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

// WriteProtocol makes the file one of another protocol.
func WriteProtocol(path string, number byte) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(metaBucket).Put(protocolKey, addSum(protocolKey, []byte{number}))
	})
	return errors.Join(err, db.Close())
}

// WriteUnreleased makes a file look as builds from before the first release wrote it.
func WriteUnreleased(path string) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		return errors.Join(meta.Delete(protocolKey), meta.Put(clockKey, putInstant(1)))
	})
	return errors.Join(err, db.Close())
}
