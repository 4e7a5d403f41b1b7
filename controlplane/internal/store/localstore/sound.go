package localstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/weir-proxy/weir/shared/wire"
)

// damaged returns what to do about a damaged file.
func damaged(path string, cause any) error {
	return fmt.Errorf("%s is damaged (%v): restore a backup of the data directory, "+
		"or move the file away to begin empty; nothing was changed", path, cause)
}

// errCut: the file ends before its last page.
var errCut = errors.New("its end is missing")

// inspect reads every page of the file without changing it, so that damage is found before it can
// do harm. A file that is missing or empty is sound. It returns the lists that are not as they were
// saved, if the store can go on all the same.
func inspect(path string) (changed []string, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// The database panics at what makes no sense, and reading beyond the end of a file is a fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			changed, err = nil, damaged(path, r)
		}
	}()
	freelist, both, err := checkHead(path)
	if err != nil {
		return nil, damaged(path, err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, ReadOnly: true, PreLoadFreelist: true})
	switch {
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch), tooSmall(err):
		return nil, damaged(path, err)
	case err != nil:
		return nil, err
	}
	var other error
	err = db.View(func(tx *bolt.Tx) error {
		other = checkProtocol(tx)
		err := readAll(tx, info.Size(), freelist)
		if err == nil {
			changed, err = changedLists(tx)
		}
		return err
	})
	err = errors.Join(err, db.Close())
	if other != nil {
		return nil, other
	}
	for _, list := range changed {
		if !mendable(list) {
			err = errors.Join(err, fmt.Errorf("%q is not as it was saved, as where a disk has changed a bit", list))
		}
	}
	if err != nil {
		return nil, damaged(path, err)
	}
	if !both {
		changed = append(changed, lastChange)
	}
	return changed, nil
}

// checkProtocol returns why this build does not read a file that another has written; nil if it
// does, or if the file names no protocol, as a new file.
func checkProtocol(tx *bolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return nil
	}
	if value := unsummed(protocolKey, meta.Get(protocolKey)); len(value) == 1 {
		return wire.CheckStore(uint64(value[0]))
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
func readAll(tx *bolt.Tx, size int64, freelist int) error {
	if size < tx.Size() {
		return errCut
	}
	pages, err := readPages(tx, freelist)
	if err != nil {
		return err
	}
	if err := pages.hasRoot(tx.Cursor().Bucket()); err != nil {
		return err
	}
	if err := readLists(tx, pages, size); err != nil {
		return err
	}
	return pages.allFound()
}

// readLists reads each value of each list.
func readLists(tx *bolt.Tx, pages *tree, size int64) error {
	left := size // Every key takes some bytes, so keys that come again and again have an end.
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if b == nil {
			return fmt.Errorf("%q is no list", name)
		}
		if err := pages.hasRoot(b); err != nil {
			return err
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

// elementSize is the size of what a branch page says of a child, and of the head of a page.
const elementSize = 16

// maxDepth is more levels than a tree of pages can have: each page but the first has two children.
const maxDepth = 64

// tree is which pages lead to which. The database would follow a circle without end, and take all
// memory for it.
type tree struct {
	// parents is the page that leads to each; 0, which is the file's head, if none does.
	parents []int
	// used are the pages that may be in the tree: neither free nor in the middle of a longer one.
	used []bool
	// roots are the pages at which lists begin.
	roots []bool
}

// readPages checks that the pages in use are as long as they can be and lead to others as a tree
// does.
func readPages(tx *bolt.Tx, freelist int) (*tree, error) {
	file, err := os.Open(tx.DB().Path())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size := tx.DB().Info().PageSize
	pages := int(tx.Size()) / size
	t := &tree{parents: make([]int, pages), used: make([]bool, pages), roots: make([]bool, pages)}
	for id := 0; id < pages; id++ {
		page, err := tx.Page(id)
		switch {
		case err != nil:
			return nil, err
		case page == nil || page.Type == "free":
			continue
		case page.OverflowCount < 0 || page.OverflowCount >= pages-id:
			return nil, fmt.Errorf("page %d is longer than the file", id)
		case page.Type == "leaf", page.Type == "meta" && id < 2, page.Type == "freelist" && id == freelist:
		case page.Type != "branch":
			return nil, fmt.Errorf("page %d is neither free nor of any kind", id)
		case elementSize*(page.Count+1) > size*(page.OverflowCount+1):
			return nil, fmt.Errorf("page %d has more children than it has space for", id)
		default:
			elements := io.NewSectionReader(file, int64(id*size+elementSize), int64(elementSize*page.Count))
			if err := t.readChildren(elements, id); err != nil {
				return nil, err
			}
		}
		t.used[id] = page.Type == "branch" || page.Type == "leaf"
		id += page.OverflowCount
	}
	return t, t.check()
}

// check finds pages that lead to what is not in use, or in a circle.
func (t *tree) check() error {
	for id, parent := range t.parents {
		if parent != 0 && !t.used[id] {
			return fmt.Errorf("page %d leads to page %d, which is not in use", parent, id)
		}
		depth := 0
		for at := id; t.parents[at] != 0; at = t.parents[at] {
			if depth++; depth > maxDepth {
				return fmt.Errorf("page %d leads in a circle", id)
			}
		}
	}
	return nil
}

// hasRoot checks that a list begins at a page in use. A short list has no page of its own: what
// stands in for it must not lead to others.
func (t *tree) hasRoot(b *bolt.Bucket) error {
	root := uint64(b.Root())
	switch {
	case root == 0 && b.Stats().InlineBucketInuse == 0:
		return errors.New("a short list leads to pages")
	case root >= uint64(len(t.used)), root != 0 && !t.used[root]:
		return fmt.Errorf("a list begins at page %d, which is not in use", root)
	case root != 0:
		t.roots[root] = true
	}
	return nil
}

// allFound checks that a list begins at each page in use, or another page leads to it: else one is
// missing among the free ones, where another may be too much.
func (t *tree) allFound() error {
	for id, used := range t.used {
		if used && t.parents[id] == 0 && !t.roots[id] {
			return fmt.Errorf("nothing leads to page %d, which is not free", id)
		}
	}
	return nil
}

// readChildren notes a branch page as the parent of its children.
func (t *tree) readChildren(elements io.Reader, id int) error {
	var element [elementSize]byte
	for {
		_, err := io.ReadFull(elements, element[:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		child := binary.NativeEndian.Uint64(element[8:])
		if child >= uint64(len(t.parents)) {
			return fmt.Errorf("page %d leads beyond the file", id)
		}
		if t.parents[child] != 0 {
			return fmt.Errorf("page %d has two parents", child)
		}
		t.parents[child] = id
	}
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
