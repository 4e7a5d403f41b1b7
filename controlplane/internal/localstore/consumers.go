package localstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// In the meta bucket: the last revision, the one after which no change is missing, that of the
// first change, and the revision of the exceptions.
var (
	revisionKey   = []byte("consumers: revision")
	floorKey      = []byte("consumers: floor")
	firstKey      = []byte("consumers: first")
	exceptionsKey = []byte("consumers: turn") // The name is from earlier files.
)

// Consumers implements consumers.Store.
func (s *Store) Consumers(
	_ context.Context, keys []keyhash.Key,
) (records []consumers.Record, state consumers.State, err error) {
	records = make([]consumers.Record, len(keys))
	err = s.db.View(func(tx *bolt.Tx) error {
		state = s.consumerState(tx)
		for i := range keys {
			stored := tx.Bucket(consumersBucket).Get(keys[i][:])
			if stored == nil {
				continue
			}
			var err error
			records[i], err = consumers.Decode(string(stored))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return records, state, err
}

// consumerState is how far changes have come, without whether there are special consumers.
func (s *Store) consumerState(tx *bolt.Tx) consumers.State {
	meta := tx.Bucket(metaBucket)
	return consumers.State{Revision: number(meta.Get(revisionKey)), ExceptionsRevision: number(meta.Get(exceptionsKey))}
}

// ListConsumers implements consumers.Store: the token is the key at which the next page begins.
func (s *Store) ListConsumers(_ context.Context, list consumers.List) (out []consumers.Listed, next string, err error) {
	from, err := hex.DecodeString(list.Token)
	if err != nil {
		return nil, "", consumers.ErrToken
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		records := tx.Bucket(consumersBucket)
		c := records.Cursor()
		if list.Banned {
			c = tx.Bucket(bannedBucket).Cursor()
		}
		for key, _ := c.Seek(from); key != nil; key, _ = c.Next() {
			if len(out) == list.Limit {
				next = hex.EncodeToString(key)
				return nil
			}
			one, err := listed(records, key)
			if err != nil {
				return err
			}
			out = append(out, one)
		}
		return nil
	})
	return out, next, err
}

// listed is the record of a consumer that is there.
func listed(records *bolt.Bucket, key []byte) (one consumers.Listed, err error) {
	copy(one.Key[:], key)
	one.Record, err = consumers.Decode(string(records.Get(key)))
	return one, err
}

// BannedConsumers implements consumers.Store.
func (s *Store) BannedConsumers(_ context.Context, limit int) (out []consumers.Listed, err error) {
	type ban struct {
		key  []byte
		ends uint64
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		var bans []ban
		err := tx.Bucket(bannedBucket).ForEach(func(key, ends []byte) error {
			bans = append(bans, ban{key, number(ends)})
			return nil
		})
		if err != nil {
			return err
		}
		slices.SortFunc(bans, func(a, b ban) int { return cmp.Compare(b.ends, a.ends) })
		for _, b := range bans[:min(len(bans), limit)] {
			one, err := listed(tx.Bucket(consumersBucket), b.key)
			if err != nil {
				return err
			}
			out = append(out, one)
		}
		return nil
	})
	return out, err
}

// WriteConsumers implements consumers.Store.
func (s *Store) WriteConsumers(ctx context.Context, c consumers.Changes) (uint64, error) {
	c.Writes = slices.Clone(c.Writes) // The transaction may outlast the caller, who has the records.
	for i, w := range c.Writes {
		if w.Record != nil {
			own := *w.Record
			c.Writes[i].Record = &own
		}
	}
	return write(ctx, s, func(tx *bolt.Tx) (uint64, error) {
		records, meta := tx.Bucket(consumersBucket), tx.Bucket(metaBucket)
		last := number(meta.Get(revisionKey))
		// At least the time: a store that has lost its state goes on above what nodes have seen.
		revision := max(last+1, uint64(s.nodes.now().UnixMilli()))
		if last == 0 {
			if err := putNumbers(meta, []keyed{{floorKey, revision - 1}, {firstKey, revision}}); err != nil {
				return 0, err
			}
		}
		special := false
		for _, w := range c.Writes {
			before := records.Get(w.Key[:])
			if len(c.Writes) == 1 && before != nil {
				_, text, _ := bytes.Cut(before, []byte(" "))
				c.Entry.Before = bytes.Clone(text)
			}
			touched, err := writeConsumer(tx, w, before, revision)
			if err != nil {
				return 0, err
			}
			special = special || touched
		}
		numbers := []keyed{{revisionKey, revision}}
		if special {
			numbers = append(numbers, keyed{exceptionsKey,
				max(number(meta.Get(exceptionsKey)), c.ExceptionsRevision) + 1})
		}
		if err := errors.Join(putNumbers(meta, numbers), dropChanges(tx)); err != nil {
			return 0, err
		}
		return revision, s.record(tx, auditConsumers, c.Entry)
	})
}

// writeConsumer makes one change of a consumer, and reports whether it has or had more than a tier.
func writeConsumer(tx *bolt.Tx, w consumers.Write, before []byte, revision uint64) (special bool, err error) {
	records, changes := tx.Bucket(consumersBucket), tx.Bucket(changesBucket)
	var held consumers.Record
	if before != nil {
		held, err = consumers.Decode(string(before))
		if err != nil {
			return false, err
		}
	}
	if !w.Any && held.Revision != w.Expected {
		return false, errs.Conflict
	}
	if w.Record == nil && held.Revision == 0 {
		return false, consumers.ErrNotFound
	}
	if err := writeRecord(records, w, revision); err != nil {
		return false, err
	}
	ends, banned := w.Record.Ends()
	was := tx.Bucket(specialBucket).Get(w.Key[:]) != nil
	err = errors.Join(
		noteEnd(tx.Bucket(specialBucket), w.Key, ends), noteEnd(tx.Bucket(bannedBucket), w.Key, banned),
		changes.Delete(changeKey(held.Revision, w.Key)),
		changes.Put(changeKey(revision, w.Key), w.Key[:]),
	)
	return was || ends > 0, err
}

// changeKey is by which a change is kept: several may have one revision.
func changeKey(revision uint64, key keyhash.Key) []byte {
	return append(versionKey(revision), key[:]...)
}

// noteEnd lists a consumer until an instant in Unix milliseconds, or no longer.
func noteEnd(list *bolt.Bucket, key keyhash.Key, ends int64) error {
	if ends == 0 {
		return list.Delete(key[:])
	}
	return list.Put(key[:], versionKey(uint64(ends)))
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

// dropChanges drops the earliest of too many changes.
func dropChanges(tx *bolt.Tx) error {
	changes, meta := tx.Bucket(changesBucket), tx.Bucket(metaBucket)
	kept := 0
	c := changes.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		kept++
	}
	for ; kept > consumers.KeptChanges; kept-- {
		earliest, _ := changes.Cursor().First()
		floor := number(earliest[:8])
		if err := changes.Delete(earliest); err != nil {
			return err
		}
		if err := putNumbers(meta, []keyed{{floorKey, floor}}); err != nil {
			return err
		}
	}
	return nil
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
func (s *Store) ConsumerLog(_ context.Context, after uint64) (l consumers.Log, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		l.State, l.Floor = s.consumerState(tx), number(meta.Get(floorKey))
		l.Whole = l.Floor < number(meta.Get(firstKey))
		l.Special, err = s.anySpecial(tx)
		if err != nil {
			return err
		}
		changes := tx.Bucket(changesBucket).Cursor()
		for at, key := changes.Seek(versionKey(after + 1)); at != nil; at, key = changes.Next() {
			c := consumers.Change{Revision: number(at[:8])}
			if copy(c.Key[:], key) != len(c.Key) {
				return fmt.Errorf("change %d of consumers is damaged", c.Revision)
			}
			if stored := tx.Bucket(consumersBucket).Get(key); stored != nil {
				c.Record, err = consumers.Decode(string(stored))
				if err != nil {
					return err
				}
			}
			l.Changes = append(l.Changes, c)
		}
		return nil
	})
	return l, err
}

// errFound ends a search.
var errFound = errors.New("found")

// anySpecial reports whether any consumer has more than a tier now.
func (s *Store) anySpecial(tx *bolt.Tx) (bool, error) {
	now := uint64(s.nodes.now().UnixMilli())
	err := tx.Bucket(specialBucket).ForEach(func(_, ends []byte) error {
		if number(ends) >= now {
			return errFound
		}
		return nil
	})
	if err == errFound {
		return true, nil
	}
	return false, err
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
