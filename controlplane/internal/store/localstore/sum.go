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

// sumKey holds a checksum of each list of the file. The database checks the form of its pages and
// not what is in them, so a bit that flips on a disk would be a quota or a ban from then on.
//
// The sums of a file that was closed are of all that it holds, and count until the next write.
// Those of one that a process has open, which a crash leaves behind, are of what only callers
// change, and count until one has: then they are made anew with the next save. The rest has sums of
// its own: each counter, and the clock.
var (
	sumKey = []byte("sum")
	// changedKey holds the number of the last transaction that was not a save.
	changedKey = []byte("changed")
)

const (
	// madeBy is the last transaction of a file that was just made.
	madeBy = 1
	// sumsRest is how many times as long as it takes to make sums none are made again: writes wait
	// meanwhile.
	sumsRest = 20
	// ofAll and ofChanges say what sums are of.
	ofAll, ofChanges = 1, 2
	sumsHead         = 1 + 8
)

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// sums returns the checksum of each list, but for the sums themselves; without all also but for
// what each save changes.
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

// seal puts the sums into the file, which count up to a transaction; it must be the last of a
// write.
func seal(tx *bolt.Tx, kind byte, upTo uint64) error {
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

// sealOpen is seal for a file that stays open, where callers have changed it since the last time.
func (s *Store) sealOpen(tx *bolt.Tx) error {
	begin := s.now()
	meta := tx.Bucket(metaBucket)
	changed := number(meta.Get(changedKey))
	if old := meta.Get(sumKey); begin.Before(s.nextSums) || len(old) >= sumsHead && old[0] == ofChanges &&
		binary.BigEndian.Uint64(old[1:]) == changed {
		return nil
	}
	err := seal(tx, ofChanges, changed)
	s.nextSums = begin.Add(sumsRest * s.now().Sub(begin))
	return err
}

// noteChange notes that a transaction changes what sums are of.
func noteChange(tx *bolt.Tx) error {
	return tx.Bucket(metaBucket).Put(changedKey, versionKey(uint64(tx.ID())))
}

// summed returns a value with a checksum of it and its key.
func summed(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, crc32.Update(crc32.Checksum(key, sumTable), sumTable, value))
}

// unsummed returns what summed was given; nothing if that is not what it has returned.
func unsummed(key, saved []byte) []byte {
	if n := len(saved) - crc32.Size; n >= 0 {
		if value := saved[:n:n]; bytes.Equal(summed(key, value), saved) {
			return value
		}
	}
	return nil
}

// changedLists returns the lists that are not as they were saved, as far as there are sums that
// count.
func changedLists(tx *bolt.Tx) (changed []string, err error) {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		// A file that was just made has no lists, and no transaction but those that make it.
		if k, _ := tx.Cursor().First(); k != nil || tx.ID() > madeBy {
			return nil, fmt.Errorf("it has lost the list %q", metaBucket)
		}
		return nil, nil
	}
	value := meta.Get(sumKey)
	at := meta.Get(clockKey)
	if at != nil && unsummed(clockKey, at) == nil {
		return nil, errors.New("its clock is not as it was saved, as where a disk has changed a bit")
	}
	if len(value) < sumsHead {
		return nil, nil
	}
	upTo, whole := binary.BigEndian.Uint64(value[1:]), value[0] == ofAll
	if whole && upTo != uint64(tx.ID()) || !whole && upTo != number(meta.Get(changedKey)) {
		return nil, nil
	}
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

// lastChange stands for the last transaction, which is lost if the meta data that names it cannot
// be read. One that the machine's crash has cut off was not acknowledged.
const lastChange = "the last change"

// mendable reports whether the store can go on without a list being as it was saved: what can be
// read of the audit is shown, and saved buckets are doubted as after a crash.
func mendable(list string) bool {
	return list == string(ledgersBucket) || strings.HasPrefix(list, auditPrefix)
}
