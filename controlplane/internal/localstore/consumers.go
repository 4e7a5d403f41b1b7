package localstore

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
)

// In the meta bucket: the last revision, the one after which no change is missing, and that of the first change.
var (
	revisionKey = []byte("consumers: revision")
	floorKey    = []byte("consumers: floor")
	firstKey    = []byte("consumers: first")
)

// Consumers implements consumers.Store.
func (s *Store) Consumers(_ context.Context, keys []consumers.Key) (records []consumers.Record, revision uint64, err error) {
	records = make([]consumers.Record, len(keys))
	err = s.db.View(func(tx *bolt.Tx) error {
		revision = number(tx.Bucket(metaBucket).Get(revisionKey))
		for i := range keys {
			stored := tx.Bucket(consumersBucket).Get(keys[i][:])
			if stored == nil {
				continue
			}
			var err error
			if records[i], err = consumers.Decode(string(stored)); err != nil {
				return err
			}
		}
		return nil
	})
	return records, revision, err
}

// ListConsumers implements consumers.Store: the token is the key at which the next page begins.
func (s *Store) ListConsumers(_ context.Context, token string, limit int) (out []consumers.Listed, next string, err error) {
	from, err := hex.DecodeString(token)
	if err != nil {
		return nil, "", consumers.ErrToken
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(consumersBucket).Cursor()
		for key, stored := c.Seek(from); key != nil; key, stored = c.Next() {
			if len(out) == limit {
				next = hex.EncodeToString(key)
				return nil
			}
			r, err := consumers.Decode(string(stored))
			if err != nil {
				return err
			}
			one := consumers.Listed{Record: r}
			copy(one.Key[:], key)
			out = append(out, one)
		}
		return nil
	})
	return out, next, err
}

// WriteConsumer implements consumers.Store.
func (s *Store) WriteConsumer(_ context.Context, w consumers.Write) (revision uint64, err error) {
	err = s.db.Update(func(tx *bolt.Tx) error {
		records, meta := tx.Bucket(consumersBucket), tx.Bucket(metaBucket)
		var held consumers.Record
		if stored := records.Get(w.Key[:]); stored != nil {
			var err error
			if held, err = consumers.Decode(string(stored)); err != nil {
				return err
			}
			w.Entry.Before = audit.Value(held)
		}
		if !w.Any && held.Revision != w.Expected {
			return consumers.ErrConflict
		}
		if w.Record == nil && held.Revision == 0 {
			return consumers.ErrNotFound
		}
		last := number(meta.Get(revisionKey))
		// At least the time: a store that has lost its state goes on above what nodes have seen.
		revision = max(last+1, uint64(s.nodes.now().UnixMilli()))
		if last == 0 {
			if err := putNumbers(meta, []keyed{{floorKey, revision - 1}, {firstKey, revision}}); err != nil {
				return err
			}
		}
		if err := writeRecord(records, w, revision); err != nil {
			return err
		}
		if err := noteChange(tx, w.Key, held.Revision, revision); err != nil {
			return err
		}
		return s.record(tx, auditConsumers, w.Entry)
	})
	return revision, err
}

func writeRecord(records *bolt.Bucket, w consumers.Write, revision uint64) error {
	if w.Record == nil {
		return records.Delete(w.Key[:])
	}
	text, err := w.Record.Encode()
	if err != nil {
		return err
	}
	return records.Put(w.Key[:], []byte(strconv.FormatUint(revision, 10)+" "+text))
}

// noteChange puts a change in the place of the consumer's last one, and drops the earliest of too many.
func noteChange(tx *bolt.Tx, key consumers.Key, before, revision uint64) error {
	changes, meta := tx.Bucket(changesBucket), tx.Bucket(metaBucket)
	if before > 0 {
		if err := changes.Delete(versionKey(before)); err != nil {
			return err
		}
	}
	if err := changes.Put(versionKey(revision), key[:]); err != nil {
		return err
	}
	kept := 0
	c := changes.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		kept++
	}
	for ; kept > consumers.KeptChanges; kept-- {
		earliest, _ := changes.Cursor().First()
		floor := number(earliest)
		if err := changes.Delete(earliest); err != nil {
			return err
		}
		if err := putNumbers(meta, []keyed{{floorKey, floor}}); err != nil {
			return err
		}
	}
	return putNumbers(meta, []keyed{{revisionKey, revision}})
}

// ConsumerRevision implements consumers.Store.
func (s *Store) ConsumerRevision(context.Context) (revision uint64, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		revision = number(tx.Bucket(metaBucket).Get(revisionKey))
		return nil
	})
	return revision, err
}

// ConsumerLog implements consumers.Store.
func (s *Store) ConsumerLog(context.Context) (l consumers.Log, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		l.Revision, l.Floor = number(meta.Get(revisionKey)), number(meta.Get(floorKey))
		l.Whole = l.Floor < number(meta.Get(firstKey))
		return tx.Bucket(changesBucket).ForEach(func(revision, key []byte) error {
			c := consumers.Change{Revision: number(revision)}
			if copy(c.Key[:], key) != len(c.Key) {
				return fmt.Errorf("change %d of consumers is damaged", c.Revision)
			}
			if stored := tx.Bucket(consumersBucket).Get(key); stored != nil {
				r, err := consumers.Decode(string(stored))
				if err != nil {
					return err
				}
				c.Tier = r.Tier
			}
			l.Changes = append(l.Changes, c)
			return nil
		})
	})
	return l, err
}

type keyed struct {
	key    []byte
	number uint64
}

func putNumbers(b *bolt.Bucket, list []keyed) error {
	for _, k := range list {
		if err := b.Put(k.key, versionKey(k.number)); err != nil {
			return err
		}
	}
	return nil
}

// number reads what versionKey wrote; anything else is 0.
func number(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
