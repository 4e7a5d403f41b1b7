package localstore

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/shared/quota"
)

// In the meta bucket: what the region uses, and its revision.
var (
	regionKey         = []byte("region")
	regionRevisionKey = []byte("region: revision")
)

// Cell is a value that several writers change. It implements regions.Cell.
type Cell struct{ store *Store }

// Region is where the control plane keeps what its region uses.
func (s *Store) Region() regions.Cell { return &Cell{s} }

// Load implements regions.Cell.
func (c *Cell) Load(context.Context) (value []byte, revision uint64, now quota.Instant, err error) {
	err = c.store.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		revision = number(meta.Get(regionRevisionKey))
		if revision > 0 {
			value = append([]byte{}, meta.Get(regionKey)...)
		}
		return nil
	})
	return value, revision, c.store.clock.now(), err
}

// Swap implements regions.Cell.
func (c *Cell) Swap(ctx context.Context, revision uint64, value []byte) (won bool, err error) {
	won, err = write(ctx, c.store, func(tx *bolt.Tx) (bool, error) {
		meta := tx.Bucket(metaBucket)
		if number(meta.Get(regionRevisionKey)) != revision {
			return false, nil
		}
		if err := meta.Put(regionKey, value); err != nil {
			return false, err
		}
		return true, putNumbers(meta, []keyed{{regionRevisionKey, revision + 1}})
	})
	return won && err == nil, err
}
