package localstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// diskPatience is the longest wait of a caller for the disk.
const diskPatience = 2 * time.Second

var (
	errDisk = errors.New("the disk does not answer")
	// errBegun is the error of a wait that ended after the change had begun.
	errBegun = errors.New("the disk does not answer, and may still make the change")
)

// written is the result of a transaction.
type written[T any] struct {
	value T
	err   error
	panic any
}

// writeChange makes a change on behalf of a caller.
func writeChange[T any](ctx context.Context, s *Store, change func(*bolt.Tx) (T, error)) (T, error) {
	return transact(ctx, s, func(tx *bolt.Tx) (value T, err error) {
		if value, err = change(tx); err == nil {
			err = noteChange(tx)
		}
		return value, err
	})
}

// transact makes a change of the file in one transaction, after earlier changes. A disk that does
// not answer delays callers by at most diskPatience. If the change has begun, it may still be made
// later.
func transact[T any](ctx context.Context, s *Store, change func(*bolt.Tx) (T, error)) (T, error) {
	var none T
	patience, cancel := context.WithTimeoutCause(ctx, diskPatience,
		fmt.Errorf("%w within %v: look at its health and at the kernel's log", errDisk, diskPatience))
	defer cancel()
	// Wait for earlier transactions.
	select {
	case s.writing <- struct{}{}:
	case <-patience.Done():
		return none, context.Cause(patience)
	}
	// Run the transaction.
	done := make(chan written[T], 1)
	go func() {
		var w written[T]
		defer func() {
			w.panic = recover()
			<-s.writing
			done <- w
		}()
		w.err = s.db.Update(func(tx *bolt.Tx) (err error) {
			w.value, err = change(tx)
			return err
		})
	}()
	// Wait for the result, but not for ever.
	select {
	case w := <-done:
		if w.panic != nil {
			panic(w.panic) // Only here the caller can recover from it.
		}
		return w.value, w.err
	case <-patience.Done():
		return none, fmt.Errorf("%w: %w", errBegun, context.Cause(patience))
	}
}

// updateFile makes a change without a result on behalf of a caller.
func (s *Store) updateFile(ctx context.Context, change func(*bolt.Tx) error) error {
	_, err := writeChange(ctx, s, func(tx *bolt.Tx) (struct{}, error) { return struct{}{}, change(tx) })
	return err
}

// closeFile closes the file. If the disk does not answer, the process ends without that.
func (s *Store) closeFile() error {
	closed := make(chan error, 1)
	go func() { closed <- s.db.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(diskPatience):
		return errDisk
	}
}
