package leases

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// trialParams are the figures of the bucket that a trial takes a token of: more than all nodes
// probe, and forgotten after a second.
var trialParams = quota.Params{Num: 1, Den: 1, Burst: int64(quota.Second)}

// probeStore finds out whether the store answers, and whether it takes a write: one that is full or
// read-only still answers who only looks. The token is of a bucket that no request has, beside the
// first bucket of the node's request in a store of several parts. A part that is away fails its own
// buckets alone.
func (s *Service) probeStore(ctx context.Context, items []wire.LeaseItem) error {
	var bucket keyhash.Key
	copy(bucket[1:], "trial of store")
	if len(items) > 0 {
		bucket[0] = items[0].Bucket[0]
	}
	ask := lease.Ask{Params: trialParams, Waiting: 1, Cost: 1, Nodes: 1}
	_, err := s.config.Store.Grant(ctx, []Item{{Bucket: bucket, Ask: ask}})
	if partial := (*Partial)(nil); errors.As(err, &partial) {
		return nil
	}
	return err
}

// asksForNothing reports whether a request's items only look, as those of a probe do.
func asksForNothing(items []wire.LeaseItem) bool {
	for i := range items {
		if !items[i].Looks() {
			return false
		}
	}
	return true
}
