package localstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
)

// Lists of audit entries: big-endian microseconds → the same number in decimal, and the entry. Each
// list has a bucket of its own, with the list's name after the prefix.
const (
	auditPrefix = "audit "
	auditMeta   = "meta"
)

// auditLists are the list of the policy set and one list for each topic.
var auditLists = func() []string {
	lists := []string{auditMeta}
	for _, t := range docs.Topics {
		lists = append(lists, t.Tag)
	}
	return lists
}()

// recordEntry stores the entry about the change that a transaction makes.
func (s *Store) recordEntry(tx *bolt.Tx, list string, e audit.Entry) error {
	text, err := e.Encode()
	if err != nil {
		return err
	}
	at := uint64(s.nodes.now().UnixMicro())
	for _, other := range auditLists {
		newest, _ := tx.Bucket([]byte(auditPrefix + other)).Cursor().Last()
		at = max(at, readNumber(newest)+1)
	}
	entries := tx.Bucket([]byte(auditPrefix + list))
	if err := entries.Put(versionKey(at), []byte(strconv.FormatUint(at, 10)+" "+text)); err != nil {
		return err
	}
	count, err := entries.NextSequence() // The number of all entries that were ever stored.
	if err != nil || count <= audit.Kept {
		return err
	}
	oldest, _ := entries.Cursor().First()
	return entries.Delete(oldest)
}

// Audit implements audit.Store.
func (s *Store) Audit(_ context.Context, before string, limit int) (all []audit.Entry, err error) {
	var stamp int64
	if before != "" {
		stamp, err = audit.Stamp(before)
		if err != nil {
			return nil, err
		}
	}
	// Read one entry more than asked for from each list: several entries may have the same time.
	err = s.db.View(func(tx *bolt.Tx) error {
		for _, list := range auditLists {
			c := tx.Bucket([]byte(auditPrefix + list)).Cursor()
			key, stored := c.Last()
			if before != "" {
				if k, _ := c.Seek(versionKey(uint64(stamp) + 1)); k == nil {
					key, stored = c.Last()
				} else {
					key, stored = c.Prev()
				}
			}
			for count := 0; key != nil && count <= limit; key, stored = c.Prev() {
				e := audit.Read(list, int64(readNumber(key)), string(stored))
				if before == "" || e.ID < before {
					all = append(all, e)
					count++
				}
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b audit.Entry) int { return cmp.Compare(b.ID, a.ID) })
	return all[:min(len(all), limit)], err
}
