package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	repliesPerItem = 6
	jitterRange    = 1024
)

// Grant implements leases.Store: one script answers all items, in a cluster one for each tag. There
// a group of joined items is all or nothing only within each tag: if one part got nothing, the
// charges of the others are lost. Items of a server that is away are left out, also of their
// groups. If no server answers, Grant fails.
func (s *Store) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	grants := make([]lease.Grant, len(items))
	groups := leases.Groups(items)
	if !s.cluster {
		all := make([]int, len(items))
		for i := range all {
			all[i] = i
		}
		return grants, s.grantTogether(ctx, items, groups, all, grants)
	}
	tags := map[byte][]int{}
	for i, it := range items {
		tags[bucketTag(it.Bucket)] = append(tags[bucketTag(it.Bucket)], i)
	}
	ends := make([]end, tagCount)
	var wait errgroup.Group
	for tag, same := range tags {
		e := &ends[tag]
		e.server, e.err = s.enter(ctx, lostKey(tag))
		if e.err != nil {
			wait.Go(func() error { return e.err })
			continue
		}
		e.tried = true
		wait.Go(func() error {
			e.err = s.grantTogether(ctx, items, groups, same, grants)
			return e.err
		})
	}
	cause := wait.Wait()
	s.leaveAll(ctx, ends)
	if cause == nil {
		allOrNothing(items, groups, grants, nil)
		return grants, nil
	}
	if s.allAway() {
		return nil, cause
	}
	partial := &leases.Partial{Away: make([]time.Duration, len(items)), Cause: cause}
	for i, it := range items {
		if e := ends[bucketTag(it.Bucket)]; e.err != nil {
			grants[i], partial.Away[i] = lease.Grant{}, max(s.breakers.Failing(e.server), time.Microsecond)
		}
	}
	allOrNothing(items, groups, grants, partial.Away)
	return grants, partial
}

// end is the outcome of the script for one tag.
type end struct {
	server string
	tried  bool
	err    error
}

// leaveAll counts the scripts of one request as one call to each server, and an answer to any of
// them as its answer. The scripts waited together, so several late ones are no more evidence than
// one.
func (s *Store) leaveAll(ctx context.Context, ends []end) {
	servers := map[string]error{}
	for _, e := range ends {
		if !e.tried {
			continue
		}
		if worst, ok := servers[e.server]; !ok || worst != nil && (e.err == nil || answered(e.err)) {
			servers[e.server] = e.err
		}
	}
	for server, err := range servers {
		s.leave(ctx, server, err)
	}
}

// allOrNothing takes back what waiting requests of a group were granted if another part of the
// group got nothing. It stays charged. Items without an answer, if any, do not count.
func allOrNothing(items []leases.Item, groups []int, grants []lease.Grant, away []time.Duration) {
	short := map[int]bool{}
	for i, it := range items {
		if grants[i].Waiting < it.Ask.Waiting && (away == nil || away[i] == 0) {
			short[groups[i]] = true
		}
	}
	for i := range items {
		if joined := items[i].Joined || i > 0 && items[i-1].Joined; joined && short[groups[i]] {
			grants[i].Waiting, grants[i].Delay = 0, 0
		}
	}
}

// grantTogether has one script answer the items at the given indexes.
func (s *Store) grantTogether(
	ctx context.Context, items []leases.Item, groups, which []int, grants []lease.Grant,
) error {
	keys := make([]string, 0, len(which))
	places := make([]int, len(which))
	args := make([]any, 1, 1+len(which))
	args[0] = rand.IntN(jitterRange)
	for k, i := range which {
		it := items[i]
		windowed := it.Ask.Windows.Quota != 0
		joined := k+1 < len(which) && groups[which[k+1]] == groups[i]
		places[k] = len(keys)
		main := bucketKey(it.Bucket, windowed)
		arg := s.tokensArg
		charge := s.tokensCharge
		if windowed {
			arg, charge = s.windowsArg, s.windowsCharge
		}
		args = append(args, arg(joined, it.Ask))
		switch {
		case it.Twin == nil:
			keys = append(keys, main)
		case it.Draft:
			keys, args = append(keys, main+draftSuffix, main), append(args, charge(joined, it))
		default:
			keys, args = append(keys, main, main+draftSuffix), append(args, charge(joined, it))
		}
	}
	reply, err := s.run(ctx, keys, args).Int64Slice()
	if err != nil {
		return err
	}
	if len(reply) == repliesPerItem*len(keys)+1 {
		s.lostNow(quota.Instant(reply[len(reply)-1]))
		reply = reply[:len(reply)-1]
	}
	if len(reply) != repliesPerItem*len(keys) {
		return fmt.Errorf("the grant script returned %d numbers for %d buckets", len(reply), len(keys))
	}
	for k, i := range which {
		r := reply[places[k]*repliesPerItem:]
		grants[i] = lease.Grant{
			Stale: r[0] == 1, Waiting: r[1], Keep: r[2], NotBefore: quota.Span(r[3]), Level: r[4],
			Delay: quota.Span(r[5]),
		}
		if r[3] < 0 {
			grants[i].NotBefore = quota.Never
		}
		switch ask := &items[i].Ask; {
		case ask.Optimistic:
			grants[i].Debt, grants[i].Delay = r[5], 0
		case ask.Windows.Quota != 0:
			grants[i].FullAfter, grants[i].Delay = quota.Span(r[5]), 0
		}
	}
	return nil
}

// run runs the script that grants. A cluster's client would send it again after a lost connection,
// and charge twice.
func (s *Store) run(ctx context.Context, keys []string, args []any) *redis.Cmd {
	if s.cluster {
		return s.runOnce(ctx, s.grant, s.source, keys, args)
	}
	return s.grant.Run(ctx, s.client, keys, args...)
}

// The script's letters for buckets of tokens and of windows, and for the twins that are charged for
// them, main or draft. A letter is a capital if the item is joined with the next.
const (
	kindTokens        = 't'
	kindWindows       = 'w'
	kindChargeTokens  = 'c'
	kindChargeWindows = 'v'
	kindDraftTokens   = 'd'
	kindDraftWindows  = 'x'
)

// tokensArg is what the script must know about a bucket of tokens.
func (s *Store) tokensArg(joined bool, a lease.Ask) []byte {
	return arg(kindTokens, joined,
		a.Params.Num, a.Params.Den, a.Params.Burst, int64(a.TTL()), int64(a.Version),
		max(a.Waiting, 0), max(a.Cost, 1), int64(a.Deadline), max(a.Keep, 0), max(a.Nodes, 1),
		int64(leases.DoubtfulFor(a)), lease.Fresh(a.Params, a.Version, 0, s.fill).Debt,
		max(a.Used, 0), bit(a.Optimistic), a.Most.Num, a.Most.Den, a.Most.Burst)
}

// bit is a flag as the script reads it.
func bit(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// windowsArg is what the script must know about a bucket of a window algorithm.
func (s *Store) windowsArg(joined bool, a lease.Ask) []byte {
	w, own := a.Windows, int64(0)
	if a.Most.Den > 0 {
		own = a.Params.Burst
	}
	return arg(kindWindows, joined,
		int64(w.Algorithm), w.Quota, int64(w.Length), int64(w.Grain), int64(w.Offset), int64(a.TTL()),
		int64(a.Version), max(a.Waiting, 0), max(a.Cost, 1), int64(a.Deadline), max(a.Keep, 0), max(a.Nodes, 1),
		int64(leases.Leased(a)), lease.LostWindows(a, s.fill), own)
}

// tokensCharge is what the script must know to charge an item's twin of tokens.
func (s *Store) tokensCharge(joined bool, it leases.Item) []byte {
	kind := byte(kindDraftTokens)
	if it.Draft {
		kind = kindChargeTokens
	}
	a, p, most := it.Ask, it.Twin.Params, it.Twin.Most
	return arg(kind, joined, int64(outlives(it)), p.Num, p.Den, p.Burst, int64(it.Twin.Version),
		int64(leases.DoubtfulFor(*it.Twin)), lease.Fresh(p, 0, 0, s.fill).Debt, most.Num, most.Den, most.Burst,
		max(a.Cost, 1), int64(a.Deadline), int64(a.TTL()), max(a.Used, 0))
}

// windowsCharge is what the script must know to charge an item's twin of a window algorithm.
func (s *Store) windowsCharge(joined bool, it leases.Item) []byte {
	kind := byte(kindDraftWindows)
	if it.Draft {
		kind = kindChargeWindows
	}
	a, w := it.Ask, it.Twin.Windows
	return arg(kind, joined, int64(outlives(it)),
		int64(w.Algorithm), w.Quota, int64(w.Length), int64(w.Grain), int64(w.Offset),
		int64(it.Twin.Version), int64(leases.Leased(*it.Twin)), lease.LostWindows(*it.Twin, s.fill),
		int64(lease.TTL(it.Twin.Params)), max(a.Cost, 1), int64(a.Deadline), int64(a.TTL()))
}

// outlives is the least time for which a draft's ledger is kept, so that the main one is not kept
// longer: usually until neither owes anything. A draft's ledger that is gone starts as the main
// one, with what that has used.
func outlives(it leases.Item) quota.Span {
	main := it.Ask
	if it.Draft {
		main = *it.Twin
	}
	if main.Windows.Quota != 0 {
		return 2*main.Windows.Length + 2*lease.TTL(main.Params)
	}
	return main.Params.Window() + 2*lease.TTL(main.Params)
}

// arg encodes a letter and numbers of eight bytes each, which Lua reads faster than texts.
func arg(kind byte, joined bool, numbers ...int64) []byte {
	if joined {
		kind -= 'a' - 'A'
	}
	b := append(make([]byte, 0, 1+8*len(numbers)), kind)
	for _, v := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}
