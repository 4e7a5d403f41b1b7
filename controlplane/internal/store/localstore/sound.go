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

// damagedError returns an error about a damaged file, with the remedy.
func damagedError(path string, cause any) error {
	return fmt.Errorf("%s is damaged (%v): restore a backup of the data directory, "+
		"or move the file away to begin empty; nothing was changed", path, cause)
}

// errCut means that the file ends before its last page.
var errCut = errors.New("its end is missing")

// inspectFile reads every page of the file without a change, so that damage is found before it does
// harm. A missing or empty file is sound. It returns the lists that have changed since they were
// saved, if the store can go on with them.
func inspectFile(path string) (changed []string, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// The database panics at data that makes no sense, and a read beyond the end of a file is a
	// fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			changed, err = nil, damagedError(path, r)
		}
	}()
	// Check the head of the file, then open it.
	freelist, both, err := checkHead(path)
	if err != nil {
		return nil, damagedError(path, err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, ReadOnly: true, PreLoadFreelist: true})
	switch {
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch), isTooSmall(err):
		return nil, damagedError(path, err)
	case err != nil:
		return nil, err
	}
	// Read every page and compare the sums.
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
	// The store cannot go on with a change in some lists.
	for _, list := range changed {
		if !isMendable(list) {
			wrong := fmt.Errorf("%q has changed since it was saved, perhaps by a fault of the disk", list)
			err = errors.Join(err, wrong)
		}
	}
	if err != nil {
		return nil, damagedError(path, err)
	}
	if !both {
		changed = append(changed, lastChange)
	}
	return changed, nil
}

// checkProtocol returns an error if another build has written the file in a protocol that this
// build does not know. It returns nil for a new file.
func checkProtocol(tx *bolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return nil
	}
	saved := meta.Get(protocolKey)
	if value := checkSum(protocolKey, saved); len(value) == 1 {
		return wire.CheckStore(uint64(value[0]))
	}
	// Builds from before the first release wrote no protocol, and a clock without its own sum. A
	// damaged file does not look so: a changed bit changes only one of them.
	if saved == nil && len(meta.Get(clockKey)) == len(putInstant(0)) {
		return wire.ErrUnreleasedStore
	}
	return nil
}

// isTooSmall reports whether a file is too small for the two pages of meta data. The database has
// no name for this error.
func isTooSmall(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "file size too small")
}

// readAll reads all values of a file of a size, each value also by its key, so that every page on
// the way is checked. The database's own check runs in another goroutine, where a fault ends the
// process.
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
	left := size // Every key takes at least one byte, so a circle of keys comes to an end.
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

// elementSize is the size of a child's entry in a branch page, and of the head of a page, in bytes.
const elementSize = 16

// maxDepth is above the depth of any tree of pages: each page but the first has two children.
const maxDepth = 64

// tree holds the links between pages. The database would follow a circle for ever, and use up all
// memory.
type tree struct {
	// parents has the parent of each page; 0, the page of the file's head, if it has none.
	parents []int
	// used is true for pages that may be in the tree: neither free nor inside a longer page.
	used []bool
	// roots is true for the first page of each list.
	roots []bool
}

// readPages checks that the pages in use have a valid length and form a tree.
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
		// Skip free pages, and check the others by their type.
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
	return t, t.checkLinks()
}

// checkLinks returns an error if a page links to an unused page, or if pages form a circle.
func (t *tree) checkLinks() error {
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

// hasRoot checks that a list begins at a page in use. A short list has no page of its own: the
// entry in its place must not link to pages.
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

// allFound checks that each page in use is the first page of a list or has a parent. Otherwise it
// is missing in the list of free pages, and that list may have a wrong entry instead.
func (t *tree) allFound() error {
	for id, used := range t.used {
		if used && t.parents[id] == 0 && !t.roots[id] {
			return fmt.Errorf("nothing leads to page %d, which is not free", id)
		}
	}
	return nil
}

// readChildren records a branch page as the parent of its children.
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

// loadSafely calls loadFile for a file that may have damage that inspectFile has not found.
func (s *Store) loadSafely(path string, now func() time.Time) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s is damaged (%v): restore a backup of the data directory, "+
				"or move the file away to begin empty", path, r)
		}
	}()
	return s.loadFile(now)
}
