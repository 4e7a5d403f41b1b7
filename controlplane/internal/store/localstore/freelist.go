package localstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// The database trusts its list of free pages. If a bit of an entry has changed, the process ends at
// the next write, or a page in use is overwritten. So the list is checked first, by the format of
// bbolt: there are two pages of meta data, and the page with the later transaction names the page
// of the list.

const (
	metaMagic    = 0xED0CDAED
	freelistPage = 0x10
	pageHead     = 16
	// metaSum is the offset of the checksum in meta data; it covers the bytes before it.
	metaSum = 56
	// manyIDs in place of a page's count means that the first entry is the count.
	manyIDs = 0xFFFF
)

// meta is the data in the head of a file.
type meta struct {
	pageSize, freelist, pages, transaction uint64
}

// readMeta reads the meta data at an offset. ok is false if there is none.
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

// newestMeta reads the valid meta data, and returns the number of pages with meta data that it
// could read. If it is 0, the database reports a better error. If it is 1, the other page was
// perhaps the page of the last transaction.
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

// checkHead checks the list of free pages in the form that the database writes. It returns the page
// of the list, 0 if there is no list, and whether both pages of meta data can be read.
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
	// The file must have all pages, and the list must be one of them.
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if most := uint64(info.Size()) / m.pageSize; m.pages > most || m.freelist < 2 || m.freelist >= m.pages {
		return 0, errCut
	}
	// Read the head of the list's page.
	reader := io.NewSectionReader(file, int64(m.freelist*m.pageSize), info.Size())
	var head [pageHead]byte
	if _, err := io.ReadFull(reader, head[:]); err != nil {
		return 0, err
	}
	order := binary.NativeEndian
	count, overflow := uint64(order.Uint16(head[10:])), uint64(order.Uint32(head[12:]))
	if order.Uint64(head[:]) != m.freelist || order.Uint16(head[8:]) != freelistPage || m.freelist+overflow >= m.pages {
		return 0, errors.New("cannot read its list of free pages: the page has another type")
	}
	// Read the number of entries.
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
		return 0, errors.Join(err, errors.New("cannot read its list of free pages: the list is longer than its pages"))
	}
	// The entries must be pages of the file in ascending order.
	last := uint64(1)
	for range count {
		id, err := entry()
		if err != nil || id <= last || id >= m.pages {
			wrong := fmt.Errorf("cannot read its list of free pages: page %d is after page %d", id, last)
			return 0, errors.Join(err, wrong)
		}
		last = id
	}
	return int(m.freelist), nil
}
