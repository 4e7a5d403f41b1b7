package localstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// sumKey holds, while no process has the store open, the number of the last write, and a checksum
// of each list of the file. The database checks the form of its pages and not what is in them, so a
// bit that flips on a disk would be a quota or a ban from then on.
var sumKey = []byte("sum")

// madeBy is the last transaction of a file that was just made.
const madeBy = 1

var sumTable = crc32.MakeTable(crc32.Castagnoli)

// sums returns the checksum of each list, but for the sums themselves.
func sums(tx *bolt.Tx) (map[string]uint32, error) {
	all := map[string]uint32{}
	err := tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		total := uint32(0)
		add := func(b []byte) {
			length := binary.LittleEndian.AppendUint64(nil, uint64(len(b)))
			total = crc32.Update(crc32.Update(total, sumTable, length), sumTable, b)
		}
		err := b.ForEach(func(k, v []byte) error {
			if string(name) != string(metaBucket) || string(k) != string(sumKey) {
				add(k)
				add(v)
			}
			return nil
		})
		all[string(name)] = total
		return err
	})
	return all, err
}

// seal puts the sums into the file; it must be the last of the last write.
func seal(tx *bolt.Tx) error {
	all, err := sums(tx)
	if err != nil {
		return err
	}
	value := binary.BigEndian.AppendUint64(nil, uint64(tx.ID()))
	for name, total := range all {
		value = append(append(value, byte(len(name))), name...)
		value = binary.BigEndian.AppendUint32(value, total)
	}
	return tx.Bucket(metaBucket).Put(sumKey, value)
}

// changedLists returns the lists that are not as they were saved. A file that was written to since,
// after a crash or by an earlier version, has no sums that count.
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
	if len(value) < 8 || binary.BigEndian.Uint64(value) != uint64(tx.ID()) {
		return nil, nil
	}
	are, err := sums(tx)
	for value = value[8:]; err == nil && len(value) > 0; {
		n := 1 + int(value[0])
		if len(value) < n+4 {
			return nil, errors.New("its sums are cut off")
		}
		name := string(value[1:n])
		if is, there := are[name]; !there || is != binary.BigEndian.Uint32(value[n:]) {
			changed = append(changed, name)
		}
		delete(are, name)
		value = value[n+4:]
	}
	for name := range are {
		changed = append(changed, name)
	}
	slices.Sort(changed)
	return changed, err
}

// mendable reports whether the store can go on without a list being as it was saved: what can be
// read of the audit is shown, and saved buckets are doubted as after a crash.
func mendable(list string) bool {
	return list == string(ledgersBucket) || strings.HasPrefix(list, auditPrefix)
}
