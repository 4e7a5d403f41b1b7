package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Grant implements leases.Store. One script answers all items; in a cluster one script for each
// tag. Requests of other callers at the same time share the script: see portion. In a cluster a
// group of joined items is all-or-nothing only within each tag: if one part of the group got
// nothing, the charges of the other parts are lost. Items whose server is away get no answer, and
// their group counts without them. If no server answers, Grant fails. In a cluster it never
// outlasts its ctx: other servers have answered.
func (s *Store) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	// A single server answers all items in one script.
	if !s.cluster {
		return s.grantTogether(ctx, &s.lines[0], items)
	}
	ctx = gather.Outlast(ctx, nil)
	// Ask the servers of all tags at the same time.
	shards := splitByTag(items)
	outcomes := make([]outcome, len(shards))
	grants := make([]lease.Grant, len(items))
	var wait sync.WaitGroup
	for k := range shards {
		if k+1 == len(shards) { // The last shard, mostly the only shard, needs no goroutine.
			outcomes[k] = s.grantShard(ctx, shards[k], grants)
			break
		}
		wait.Go(func() { outcomes[k] = s.grantShard(ctx, shards[k], grants) })
	}
	wait.Wait()
	s.reportOutcomes(ctx, outcomes)
	cause := findCause(outcomes)
	if cause == nil {
		allOrNothing(items, grants, nil)
		return grants, nil
	}
	if s.allAway() {
		return nil, cause
	}
	// Name the items without an answer.
	partial := &leases.Partial{Away: make([]time.Duration, len(items)), Cause: cause}
	for k, o := range outcomes {
		if o.err == nil {
			continue
		}
		away := max(s.breakers.Failing(o.server), time.Microsecond)
		for _, i := range shards[k].which {
			partial.Away[i] = away
		}
	}
	allOrNothing(items, grants, partial.Away)
	return grants, partial
}

// shard is the items of one request that have the same tag, and their places in the request.
type shard struct {
	tag   byte
	items []leases.Item
	which []int
}

// splitByTag sorts items by their tags.
func splitByTag(items []leases.Item) []shard {
	var shards []shard
	var at [tagCount]int // the index of the tag's shard plus one; 0 if there is none
	for i, it := range items {
		tag := bucketTag(it.Bucket)
		if at[tag] == 0 {
			shards = append(shards, shard{tag: tag})
			at[tag] = len(shards)
		}
		of := &shards[at[tag]-1]
		of.items, of.which = append(of.items, it), append(of.which, i)
	}
	return shards
}

// grantShard runs a script for the items of one tag, unless the breaker of its server is open.
func (s *Store) grantShard(ctx context.Context, of shard, grants []lease.Grant) (o outcome) {
	o.server, o.err = s.findServer(ctx, lostKey(of.tag))
	if o.err != nil {
		return o
	}
	o.called = true
	some, err := s.grantTogether(ctx, &s.lines[of.tag], of.items)
	o.err = err
	if partial := (*leases.Partial)(nil); errors.As(err, &partial) {
		o.err = partial.Cause // A tag is answered as a whole or not at all.
	}
	for k, g := range some {
		grants[of.which[k]] = g
	}
	return o
}

// outcome is the outcome of the script for one tag.
type outcome struct {
	server string
	// called is true if the server was called, and not skipped because of its breaker.
	called bool
	err    error
}

// findCause returns a failure of a request's scripts; nil if there was none. It prefers a failure
// that no other request reports too.
func findCause(outcomes []outcome) (cause error) {
	for _, o := range outcomes {
		if o.err != nil && (cause == nil || gather.IsShared(cause)) {
			cause = o.err
		}
	}
	return cause
}

// reportOutcomes reports the scripts of one request to the breakers, as one call to each server. If
// a server has answered any of its scripts, it counts as answering. Late scripts of one server
// count as one failure, because they waited at the same time. If several requests shared a failed
// script, only one of these requests reports the failure.
func (s *Store) reportOutcomes(ctx context.Context, outcomes []outcome) {
	servers := map[string]error{}
	for _, o := range outcomes {
		if !o.called || gather.IsShared(o.err) {
			continue
		}
		best, known := servers[o.server]
		if !known || best != nil && (o.err == nil || isAnswer(o.err)) {
			servers[o.server] = o.err
		}
	}
	for server, err := range servers {
		s.reportCall(ctx, server, err)
	}
}

// allOrNothing removes the grants to waiting requests of a group if another part of the group got
// nothing. The charge stays. Items without an answer do not count.
func allOrNothing(items []leases.Item, grants []lease.Grant, away []time.Duration) {
	for first, n := 0, 0; first < len(items); first += n {
		n = leases.Leading(items[first:])
		short := false
		for i := first; i < first+n; i++ {
			short = short || grants[i].Waiting < items[i].Ask.Waiting && (away == nil || away[i] == 0)
		}
		for i := first; i < first+n && n > 1 && short; i++ {
			grants[i].Waiting, grants[i].Delay = 0, 0
		}
	}
}

// tokensArg encodes the arguments of the script for a bucket of tokens.
func (s *Store) tokensArg(a lease.Ask) []byte {
	return encodeArg(
		a.Params.Num, a.Params.Den, a.Params.Burst, int64(a.TTL()), int64(a.Version),
		max(a.Waiting, 0), max(a.Cost, 1), int64(a.Deadline), max(a.Keep, 0), max(a.Nodes, 1),
		s.encodeLacking(a, leases.DoubtfulFor(a)), lease.Fresh(a.Params, a.Version, 0, s.fill).Debt,
		max(a.Used, 0), encodeOwes(a), a.Most.Num, a.Most.Den, a.Most.Burst, earnedInLease(a), int64(a.Reserved))
}

// earnedInLease returns the tokens that a limit earns in the time of a lease.
func earnedInLease(a lease.Ask) int64 { return a.Params.Earned(a.TTL()) }

// encodeOwes encodes for the script whether a bucket may owe more than it holds.
func encodeOwes(a lease.Ask) int64 {
	switch {
	case a.Optimistic:
		return 1
	case a.Owing:
		return 2
	}
	return 0
}

// windowsArg encodes the arguments of the script for a bucket of a window algorithm.
func (s *Store) windowsArg(a lease.Ask) []byte {
	w, own := a.Windows, int64(0)
	if a.Most.Den > 0 {
		own = a.Params.Burst
	}
	return encodeArg(
		int64(w.Algorithm), w.Quota, int64(w.Length), int64(w.Grain), int64(w.Offset), int64(a.TTL()),
		int64(a.Version), max(a.Waiting, 0), max(a.Cost, 1), int64(a.Deadline), max(a.Keep, 0), max(a.Nodes, 1),
		s.encodeLacking(a, leases.Leased(a)), lease.LostWindows(a, s.fill), own, earnedInLease(a), encodeOwes(a),
		int64(a.Reserved))
}

// encodeLacking encodes for the script a span after a loss of state: 0 if no lost bucket lacks
// tokens.
func (s *Store) encodeLacking(a lease.Ask, span quota.Span) int64 {
	if !leases.Lacks(s.fill, a) {
		return 0
	}
	return int64(span)
}

// tokensCharge encodes the arguments of the script that charge the twin of an item, of tokens.
func (s *Store) tokensCharge(it *leases.Item) []byte {
	a, p, most := it.Ask, it.Twin.Params, it.Twin.Most
	return encodeArg(int64(ledgerLife(it)), p.Num, p.Den, p.Burst, int64(it.Twin.Version),
		int64(leases.DoubtfulFor(*it.Twin)), lease.Fresh(p, 0, 0, s.fill).Debt, most.Num, most.Den, most.Burst,
		max(a.Cost, 1), int64(a.Deadline), int64(a.TTL()), a.Params.Num, a.Params.Den, encodeOwes(*it.Twin),
		max(a.Used, 0))
}

// windowsCharge encodes the arguments of the script that charge the twin of an item, of a window
// algorithm.
func (s *Store) windowsCharge(it *leases.Item) []byte {
	a, w := it.Ask, it.Twin.Windows
	return encodeArg(int64(ledgerLife(it)),
		int64(w.Algorithm), w.Quota, int64(w.Length), int64(w.Grain), int64(w.Offset),
		int64(it.Twin.Version), int64(leases.Leased(*it.Twin)), lease.LostWindows(*it.Twin, s.fill),
		int64(lease.TTL(it.Twin.Params)), max(a.Cost, 1), int64(a.Deadline), int64(a.TTL()), int64(a.Windows.Reach()),
		encodeOwes(*it.Twin))
}

// ledgerLife returns the least time for which the store keeps a draft's ledger. It keeps the main
// ledger no longer: usually until neither ledger owes anything. A draft's ledger that is missing
// starts as a copy of the main ledger, with its use.
func ledgerLife(it *leases.Item) quota.Span {
	main := it.Ask
	if it.Draft {
		main = *it.Twin
	}
	if main.Windows.Quota != 0 {
		return 2*main.Windows.Length + 2*lease.TTL(main.Params)
	}
	return main.Params.Window() + 2*lease.TTL(main.Params)
}

// encodeArg encodes a byte for the verb and numbers of eight bytes each, which Lua reads faster
// than texts.
func encodeArg(numbers ...int64) []byte {
	b := make([]byte, 1, 1+8*len(numbers))
	for _, v := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}
