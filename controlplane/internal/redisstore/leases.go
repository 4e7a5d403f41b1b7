package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	argsPerItem    = 12
	repliesPerItem = 5
	jitterRange    = 1024
)

// Grant implements leases.Store: one script for all items, in a cluster one for each tag.
func (s *Store) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	grants := make([]lease.Grant, len(items))
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if !s.cluster {
		all := make([]int, len(items))
		for i := range all {
			all[i] = i
		}
		return grants, s.grantGroup(ctx, lost, items, all, grants)
	}
	groups := map[byte][]int{}
	for i, it := range items {
		groups[bucketTag(it.Bucket)] = append(groups[bucketTag(it.Bucket)], i)
	}
	var wait errgroup.Group
	for _, group := range groups {
		wait.Go(func() error { return s.grantGroup(ctx, lost, items, group, grants) })
	}
	return grants, wait.Wait()
}

// grantGroup has one script answer the items at the given indexes.
func (s *Store) grantGroup(ctx context.Context, lost quota.Instant, items []leases.Item, group []int, grants []lease.Grant) error {
	keys := make([]string, len(group))
	args := make([]any, 1, 1+argsPerItem*len(group))
	args[0] = rand.IntN(jitterRange)
	for k, i := range group {
		keys[k] = bucketKey(items[i].Bucket)
		args = appendArgs(args, lost, items[i].Ask)
	}
	reply, err := s.grant.Run(ctx, s.client, keys, args...).Int64Slice()
	if err != nil {
		return err
	}
	if len(reply) != repliesPerItem*len(group) {
		return fmt.Errorf("the grant script returned %d numbers for %d buckets", len(reply), len(group))
	}
	for k, i := range group {
		r := reply[k*repliesPerItem:]
		grants[i] = lease.Grant{Stale: r[0] == 1, Waiting: r[1], Keep: r[2], NotBefore: quota.Span(r[3]), Level: r[4]}
	}
	return nil
}

// appendArgs appends what the script wants to know about one bucket.
func appendArgs(args []any, lost quota.Instant, a lease.Ask) []any {
	doubtfulDebt := lease.Fresh(a.Params, a.Version, 0, leases.LostFill).Debt
	var doubtfulUntil int64
	if lost > 0 {
		doubtfulUntil = int64(lost) + int64(leases.Doubtful(a.Params))
	}
	for _, v := range [argsPerItem]int64{
		a.Params.Num, a.Params.Den, a.Params.Burst, int64(lease.TTL(a.Params)), int64(a.Version),
		max(a.Waiting, 0), max(a.Cost, 1), int64(a.Deadline), max(a.Keep, 0), max(a.Nodes, 1), doubtfulUntil, doubtfulDebt,
	} {
		args = append(args, strconv.FormatInt(v, 10))
	}
	return args
}
