package leases

import (
	"context"
	"errors"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// trialParams are the figures of the trial's bucket: more tokens than all nodes probe, and
// forgotten after a second.
var trialParams = quota.Params{Num: 1, Den: 1, Burst: int64(quota.Second)}

// probeStore finds out whether the store answers and accepts a write: a store that is full or
// read-only still answers reads. It takes a token of a bucket that no request uses; in a store of
// several parts that bucket is beside the first bucket of the request. If a part is away, only its
// own buckets fail.
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

// asksForNothing reports whether a request's items only look, as the items of a probe do.
func asksForNothing(items []wire.LeaseItem) bool {
	for i := range items {
		if !items[i].Looks() {
			return false
		}
	}
	return true
}
