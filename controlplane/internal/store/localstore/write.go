package localstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// diskPatience is for how long a caller waits for the disk.
const diskPatience = 2 * time.Second

var (
	errDisk = errors.New("the disk does not answer")
	// errBegun is the end of a wait for a change that has begun.
	errBegun = errors.New("the disk does not answer, and may still make the change")
)

// written is what became of a transaction.
type written[T any] struct {
	value T
	err   error
	panic any
}

// write makes a change of what callers change of the file.
func write[T any](ctx context.Context, s *Store, change func(*bolt.Tx) (T, error)) (T, error) {
	return transact(ctx, s, func(tx *bolt.Tx) (value T, err error) {
		if value, err = change(tx); err == nil {
			err = noteChange(tx)
		}
		return value, err
	})
}

// transact makes a change of the file in one transaction, after those before it. A disk that does
// not answer holds up no caller: the change may still be made when it does, unless it has not
// begun.
func transact[T any](ctx context.Context, s *Store, change func(*bolt.Tx) (T, error)) (T, error) {
	var none T
	patience, cancel := context.WithTimeoutCause(ctx, diskPatience,
		fmt.Errorf("%w within %v: look at its health and at the kernel's log", errDisk, diskPatience))
	defer cancel()
	select {
	case s.writing <- struct{}{}:
	case <-patience.Done():
		return none, context.Cause(patience)
	}
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
	select {
	case w := <-done:
		if w.panic != nil {
			panic(w.panic) // Here the caller can recover from it.
		}
		return w.value, w.err
	case <-patience.Done():
		return none, fmt.Errorf("%w: %w", errBegun, context.Cause(patience))
	}
}

// update is write for changes without a result.
func (s *Store) update(ctx context.Context, change func(*bolt.Tx) error) error {
	_, err := write(ctx, s, func(tx *bolt.Tx) (struct{}, error) { return struct{}{}, change(tx) })
	return err
}

// closeFile closes the file, unless the disk does not answer: the process ends without that then.
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
