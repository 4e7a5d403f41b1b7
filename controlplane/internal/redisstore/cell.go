package redisstore

import (
	"context"
	_ "embed" // for the script
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/regions"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/cell.lua
var cellScript string

var useCell = redis.NewScript(cellScript)

// The cells of the regions: what one region uses, and the document of all.
const (
	keyRegion   = "weir:{meta}:region"
	keyDocument = "weir:{regions}:document"
)

// Cell is a value that several writers change. It implements regions.Cell.
type Cell struct {
	store *Store
	key   string
}

// Region is where the control planes that share this Redis keep what their region uses.
func (s *Store) Region() regions.Cell { return &Cell{s, keyRegion} }

// Document is where all regions keep who holds what.
func (s *Store) Document() regions.Cell { return &Cell{s, keyDocument} }

// Load implements regions.Cell.
func (c *Cell) Load(ctx context.Context) ([]byte, uint64, quota.Instant, error) {
	reply, err := useCell.Run(ctx, c.store.client, []string{c.key}).StringSlice()
	if err != nil {
		return nil, 0, 0, err
	}
	if len(reply) != 3 {
		return nil, 0, 0, fmt.Errorf("%s answered %d values", c.key, len(reply))
	}
	revision, err := strconv.ParseUint(reply[1], 10, 64)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("%s does not hold a revision: %w", c.key, err)
	}
	now, err := strconv.ParseInt(reply[2], 10, 64)
	if err != nil {
		return nil, 0, 0, err
	}
	if revision == 0 {
		return nil, 0, quota.Instant(now), nil
	}
	return []byte(reply[0]), revision, quota.Instant(now), nil
}

// Swap implements regions.Cell.
func (c *Cell) Swap(ctx context.Context, revision uint64, value []byte) (bool, error) {
	won, err := useCell.Run(ctx, c.store.client, []string{c.key}, strconv.FormatUint(revision, 10), value).Int()
	return won == 1, err
}
