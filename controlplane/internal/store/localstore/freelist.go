package localstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// The database believes its list of free pages: an entry that a bit has changed ends the process at
// the next write, or has a page in use written over. So the list is read here before, by the format
// of bbolt: two pages of meta data, of which the one with the later transaction counts, say where
// it is.

const (
	metaMagic    = 0xED0CDAED
	freelistPage = 0x10
	pageHead     = 16
	// metaSum is where the checksum begins in meta data, of what is before it.
	metaSum = 56
	// manyIDs as the count of a page: its first entry is the count.
	manyIDs = 0xFFFF
)

// meta is what the head of a file says.
type meta struct {
	pageSize, freelist, pages, transaction uint64
}

// readMeta reads the meta data at an offset. It reports false if there is none.
func readMeta(file io.ReaderAt, at int64) (m meta, ok bool) {
	var b [metaSum + 8]byte
	if _, err := file.ReadAt(b[:], at+pageHead); err != nil {
		return m, false
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSum])
	order := binary.NativeEndian
	m = meta{
		pageSize: uint64(order.Uint32(b[8:])), freelist: order.Uint64(b[32:]), pages: order.Uint64(b[40:]),
		transaction: order.Uint64(b[48:]),
	}
	return m, order.Uint32(b[:]) == metaMagic && order.Uint64(b[metaSum:]) == sum.Sum64() && m.pageSize > pageHead
}

// newestMeta reads the meta data that counts, and how many pages of it can be read. If there are
// none the database says so better. If one cannot be read, it was perhaps that of the last
// transaction.
func newestMeta(file io.ReaderAt) (m meta, readable int) {
	size := int64(os.Getpagesize())
	m, ok := readMeta(file, 0)
	if ok {
		readable, size = 1, int64(m.pageSize)
	}
	if second, ok := readMeta(file, size); ok {
		readable++
		if second.transaction > m.transaction || readable == 1 {
			m = second
		}
	}
	return m, readable
}

// checkHead checks that the free pages of a file are listed as the database lists them. It returns
// the page of the list, 0 if there is none, and whether both pages of meta data can be read.
func checkHead(path string) (page int, both bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	m, readable := newestMeta(file)
	const none = ^uint64(0)
	if readable > 0 && m.freelist != none {
		page, err = checkFreelist(file, m)
	}
	return page, readable > 1, err
}

func checkFreelist(file *os.File, m meta) (page int, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if most := uint64(info.Size()) / m.pageSize; m.pages > most || m.freelist < 2 || m.freelist >= m.pages {
		return 0, errCut
	}
	reader := io.NewSectionReader(file, int64(m.freelist*m.pageSize), info.Size())
	var head [pageHead]byte
	if _, err := io.ReadFull(reader, head[:]); err != nil {
		return 0, err
	}
	order := binary.NativeEndian
	count, overflow := uint64(order.Uint16(head[10:])), uint64(order.Uint32(head[12:]))
	if order.Uint64(head[:]) != m.freelist || order.Uint16(head[8:]) != freelistPage || m.freelist+overflow >= m.pages {
		return 0, errors.New("its list of free pages is none")
	}
	room := ((overflow+1)*m.pageSize - pageHead) / 8
	entry := func() (uint64, error) {
		var b [8]byte
		_, err := io.ReadFull(reader, b[:])
		return order.Uint64(b[:]), err
	}
	if count == manyIDs {
		count, err = entry()
		room--
	}
	if err != nil || count > room {
		return 0, errors.Join(err, errors.New("its list of free pages is longer than its pages"))
	}
	last := uint64(1)
	for range count {
		id, err := entry()
		if err != nil || id <= last || id >= m.pages {
			return 0, errors.Join(err, fmt.Errorf("its list of free pages has page %d after %d", id, last))
		}
		last = id
	}
	return int(m.freelist), nil
}
