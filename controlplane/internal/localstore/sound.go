package localstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// damaged returns what to do about a damaged file.
func damaged(path string, cause any) error {
	return fmt.Errorf("%s is damaged (%v): restore a backup of the data directory, "+
		"or move the file away to begin empty; nothing was changed", path, cause)
}

// errCut: the file ends before its last page.
var errCut = errors.New("its end is missing")

// inspect reads every page of the file without changing it, so that damage is found before it can
// do harm. A file that is missing or empty is sound.
func inspect(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	// The database panics at what makes no sense, and reading beyond the end of a file is a fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = damaged(path, r)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, ReadOnly: true, PreLoadFreelist: true})
	switch {
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch), tooSmall(err):
		return damaged(path, err)
	case err != nil:
		return err
	}
	err = db.View(func(tx *bolt.Tx) error { return readAll(tx, info.Size()) })
	err = errors.Join(err, db.Close())
	if err != nil {
		return damaged(path, err)
	}
	return nil
}

// tooSmall reports whether a file does not even hold the two pages that say where the rest is. The
// database has no name for this error.
func tooSmall(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "file size too small")
}

// readAll reads what is in a file of a size, each value also by its key, so that every page on the
// way is one that makes sense. The database's own check does it in another goroutine, where a fault
// ends the process.
func readAll(tx *bolt.Tx, size int64) error {
	if size < tx.Size() {
		return errCut
	}
	if err := readHeads(tx); err != nil {
		return err
	}
	left := size // Every key takes some bytes: pages that lead in a circle have an end.
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if b == nil {
			return fmt.Errorf("%q is no list", name)
		}
		return b.ForEach(func(k, v []byte) error {
			left -= int64(len(k)+len(v)) + 1
			if left < 0 {
				return errors.New("its pages lead in a circle")
			}
			if !bytes.Equal(b.Get(k), v) {
				return fmt.Errorf("a key of %q is not in its place", name)
			}
			return nil
		})
	})
}

// readHeads checks the lengths that the pages in use claim: to free a page that claims to be longer
// than the file would never end.
func readHeads(tx *bolt.Tx) error {
	pages := int(tx.Size()) / tx.DB().Info().PageSize
	for id := 0; id < pages; id++ {
		info, err := tx.Page(id)
		if err != nil {
			return err
		}
		if info == nil || info.Type == "free" {
			continue
		}
		if info.OverflowCount < 0 || info.OverflowCount >= pages-id {
			return fmt.Errorf("page %d is longer than the file", id)
		}
		id += info.OverflowCount
	}
	return nil
}

// loadSafely is load for a file that may have damage which inspect has not seen.
func (s *Store) loadSafely(path string, now func() time.Time) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s is damaged (%v): restore a backup of the data directory, "+
				"or move the file away to begin empty", path, r)
		}
	}()
	return s.load(now)
}
