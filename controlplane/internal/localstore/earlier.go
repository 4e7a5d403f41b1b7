package localstore

import (
	"bytes"
	"errors"

	bolt "go.etcd.io/bbolt"
)

const instantSize = 8

// isEarlier reports whether a build has written a file last that gave neither the clock nor a
// counter a checksum. Its sums say not what they are of: they are of all, and of a file that was
// closed.
func isEarlier(meta *bolt.Bucket) bool {
	sum := meta.Get(sumKey)
	return len(meta.Get(clockKey)) == instantSize && (len(sum) == 0 || sum[0] != ofAll && sum[0] != ofChanges)
}

// takeOver gives the clock and the counters of such a file their checksums. Counters that have one
// were there before an operator went back to the earlier build, and have not changed since.
func takeOver(tx *bolt.Tx) error {
	meta, saved := tx.Bucket(metaBucket), tx.Bucket(ledgersBucket)
	lacking := map[string][]byte{} // A list does not change while it is read.
	err := saved.ForEach(func(k, v []byte) error {
		if unsummed(k, v) == nil {
			lacking[string(k)] = bytes.Clone(v)
		}
		return nil
	})
	for k, v := range lacking {
		err = errors.Join(err, saved.Put([]byte(k), summed([]byte(k), v)))
	}
	return errors.Join(err, meta.Put(clockKey, summed(clockKey, bytes.Clone(meta.Get(clockKey)))))
}
