package localstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// sumKey holds a checksum of each list of the file. The database checks the form of its pages but
// not their contents, so a bit that flips on a disk would change a quota or a ban.
//
// In a closed file the sums cover everything, and are valid until the next write. In an open file,
// which a crash leaves behind, they cover the data that only callers change, and are valid until a
// caller changes it: then the next save computes new sums. The other data has sums of its own: each
// counter, and the clock.
var (
	sumKey = []byte("sum")
	// changedKey holds the number of the last transaction that was not a save.
	changedKey = []byte("changed")
)

const (
	// madeBy is the last transaction of a new file.
	madeBy = 1
	// sumsRest times the duration of the last computation is the pause before the next computation:
	// writes wait during a computation.
	sumsRest = 20
	// ofAll and ofChanges name the data that sums cover.
	ofAll, ofChanges = 1, 2
	sumsHead         = 1 + 8
)

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// sums returns the checksum of each list, without the sums themselves. With all false it leaves out
// the data that each save changes.
func sums(tx *bolt.Tx, all bool) (map[string]uint32, error) {
	of := map[string]uint32{}
	err := tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if !all && bytes.Equal(name, ledgersBucket) {
			return nil
		}
		total, isMeta := uint32(0), bytes.Equal(name, metaBucket)
		add := func(b []byte) {
			length := binary.LittleEndian.AppendUint64(nil, uint64(len(b)))
			total = crc32.Update(crc32.Update(total, sumTable, length), sumTable, b)
		}
		err := b.ForEach(func(k, v []byte) error {
			if !isMeta || !bytes.Equal(k, sumKey) && (all || !bytes.Equal(k, clockKey)) {
				add(k)
				add(v)
			}
			return nil
		})
		of[string(name)] = total
		return err
	})
	return of, err
}

// storeSums stores the sums, which are valid up to a transaction. It must be the last step of a
// write.
func storeSums(tx *bolt.Tx, kind byte, upTo uint64) error {
	all, err := sums(tx, kind == ofAll)
	if err != nil {
		return err
	}
	value := binary.BigEndian.AppendUint64([]byte{kind}, upTo)
	for name, total := range all {
		value = append(append(value, byte(len(name))), name...)
		value = binary.BigEndian.AppendUint32(value, total)
	}
	return tx.Bucket(metaBucket).Put(sumKey, value)
}

// storeSumsOpen stores the sums of a file that stays open, if callers have changed it since the
// last sums.
func (s *Store) storeSumsOpen(tx *bolt.Tx) error {
	begin := s.now()
	meta := tx.Bucket(metaBucket)
	changed := readNumber(meta.Get(changedKey))
	if old := meta.Get(sumKey); begin.Before(s.nextSums) || len(old) >= sumsHead && old[0] == ofChanges &&
		binary.BigEndian.Uint64(old[1:]) == changed {
		return nil
	}
	err := storeSums(tx, ofChanges, changed)
	s.nextSums = begin.Add(sumsRest * s.now().Sub(begin))
	return err
}

// noteChange records that a transaction changes data that the sums cover.
func noteChange(tx *bolt.Tx) error {
	return tx.Bucket(metaBucket).Put(changedKey, versionKey(uint64(tx.ID())))
}

// addSum returns a value with a checksum of the value and its key.
func addSum(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, crc32.Update(crc32.Checksum(key, sumTable), sumTable, value))
}

// checkSum returns the value of addSum; nil if the checksum is wrong.
func checkSum(key, saved []byte) []byte {
	if n := len(saved) - crc32.Size; n >= 0 {
		if value := saved[:n:n]; bytes.Equal(addSum(key, value), saved) {
			return value
		}
	}
	return nil
}

// changedLists returns the lists that have changed since they were saved, if there are valid sums.
func changedLists(tx *bolt.Tx) (changed []string, err error) {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		// A new file has no lists, and only the transaction that made it.
		if k, _ := tx.Cursor().First(); k != nil || tx.ID() > madeBy {
			return nil, fmt.Errorf("it has lost the list %q", metaBucket)
		}
		return nil, nil
	}
	// The clock has a sum of its own.
	value := meta.Get(sumKey)
	at := meta.Get(clockKey)
	if at != nil && checkSum(clockKey, at) == nil {
		return nil, errors.New("its clock has changed since it was saved, perhaps by a fault of the disk")
	}
	if len(value) < sumsHead {
		return nil, nil
	}
	// Old sums say nothing: the file was changed after them.
	upTo, whole := binary.BigEndian.Uint64(value[1:]), value[0] == ofAll
	if whole && upTo != uint64(tx.ID()) || !whole && upTo != readNumber(meta.Get(changedKey)) {
		return nil, nil
	}
	// Compare each list with its sum.
	are, err := sums(tx, whole)
	for value = value[sumsHead:]; err == nil && len(value) > 0; {
		n := 1 + int(value[0])
		if len(value) < n+crc32.Size {
			return nil, errors.New("its sums are cut off")
		}
		name := string(value[1:n])
		if is, there := are[name]; !there || is != binary.BigEndian.Uint32(value[n:]) {
			changed = append(changed, name)
		}
		delete(are, name)
		value = value[n+crc32.Size:]
	}
	for name := range are {
		changed = append(changed, name)
	}
	slices.Sort(changed)
	return changed, err
}

// lastChange names the last transaction in a message. It is lost if its page of meta data cannot be
// read. A transaction that a crash of the machine cut off was not acknowledged.
const lastChange = "the last change"

// isMendable reports whether the store can go on with a changed list: it shows the audit entries
// that it can read, and doubts saved buckets as after a crash.
func isMendable(list string) bool {
	return list == string(ledgersBucket) || strings.HasPrefix(list, auditPrefix)
}
