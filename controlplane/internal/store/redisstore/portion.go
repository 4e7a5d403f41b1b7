package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/grant/gather"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	repliesPerKey = 7
	jitterRange   = 1024
	// fullCall is the number of keys that leave at once while another call of the script is under
	// way: the maximum number of items of one request, if none has a twin. A call has at most three
	// times fullCall keys, without twins less than twice. Redis works for two milliseconds on
	// these.
	fullCall = 64
	// gatherTime is the longest wait of a request for a call that is under way. A lost call takes
	// twenty times as long.
	gatherTime = 2 * time.Millisecond
)

// portion is the part of one request for the buckets of one tag, or for all buckets if there is one
// server. While a call of the script is under way, portions of several requests gather and then
// share one call. The script answers each portion as if it were alone, one after the other.
type portion struct {
	items []leases.Item
	// keys and args are the arguments of the script. places are the indexes of each item's first
	// key.
	keys   []string
	args   [][]byte
	places []int
	// grants are the answers. err is the reason if the script ran and there are none.
	grants []lease.Grant
	err    error
}

// grantTogether runs one script for these items and for the items of other requests.
func (s *Store) grantTogether(
	ctx context.Context, line *gather.Line[*portion], items []leases.Item,
) ([]lease.Grant, error) {
	p := s.newPortion(items)
	if err := line.Do(ctx, p, len(p.keys)); err != nil {
		return nil, err
	}
	s.lent.Note(items, p.grants, s.age())
	return p.grants, p.err
}

// newPortion encodes the items of a request.
func (s *Store) newPortion(items []leases.Item) *portion {
	p := &portion{
		items: items, keys: make([]string, 0, len(items)), args: make([][]byte, 0, len(items)),
		places: make([]int, 0, len(items)),
	}
	for first, n := 0, 0; first < len(items); first += n {
		n = leases.Leading(items[first:])
		for i := first; i < first+n; i++ {
			p.places = append(p.places, len(p.keys))
			s.encode(p, &items[i], i+1 < first+n)
		}
	}
	return p
}

// encode adds an item to a portion. joined is true if the next item belongs to the same group.
func (s *Store) encode(p *portion, it *leases.Item, joined bool) {
	if it.Kind == wire.KindClaim {
		p.addKey(permitsKey(it.Bucket), it.Kind, claimArg(&it.Claim))
		return
	}
	windowed, flags := it.Ask.Windows.Quota != 0, wire.ItemKind(0)
	arg, charge := s.tokensArg, s.tokensCharge
	if windowed {
		arg, charge, flags = s.windowsArg, s.windowsCharge, ofWindows
	}
	if joined {
		flags |= joinsNext
	}
	own := bucketKey(it.Bucket, windowed)
	switch {
	case it.Kind == wire.KindSettle:
		p.addKey(own, it.Kind|flags, settleArg(it))
	case it.Kind == wire.KindReturn:
		p.addKey(own, it.Kind|flags, returnArg(it))
	case it.Twin == nil:
		p.addKey(own, it.Kind|flags, arg(it.Ask))
	case it.Draft:
		p.addKey(own+draftSuffix, it.Kind|flags, arg(it.Ask))
		p.addKey(own, chargesMain|flags, charge(it))
	default:
		p.addKey(own, it.Kind|flags, arg(it.Ask))
		p.addKey(own+draftSuffix, chargesDraft|flags, charge(it))
	}
}

// addKey adds to a portion a key, its verb, and the numbers of the verb.
func (p *portion) addKey(key string, verb wire.ItemKind, arg []byte) {
	arg[0] = byte(verb)
	p.keys, p.args = append(p.keys, key), append(p.args, arg)
}

// callTogether calls the script once for all portions.
func (s *Store) callTogether(ctx context.Context, portions []*portion) error {
	// Join the arguments of all portions.
	var keys []string
	args := []any{rand.IntN(jitterRange)}
	for _, p := range portions {
		keys = append(keys, p.keys...)
		for _, arg := range p.args {
			args = append(args, arg)
		}
	}
	s.called(len(keys))
	reply, err := s.runGrant(ctx, keys, args).Slice()
	if err != nil {
		return err
	}
	// The script has seen a loss of state if it returns one more number, the time.
	n := repliesPerKey * len(keys)
	if len(reply) == n+1 { // The marker of lost state was missing: it gets this time.
		if at, ok := reply[n].(int64); ok {
			s.lostNow(quota.Instant(at))
		}
		reply = reply[:n]
	}
	if len(reply) != n {
		return fmt.Errorf("the grant script returned %d values for %d keys", len(reply), len(keys))
	}
	// Give each portion its part of the answer.
	for _, p := range portions {
		mine := repliesPerKey * len(p.keys)
		p.decode(reply[:mine])
		reply = reply[mine:]
	}
	return nil
}

// decode decodes the portion's part of the script's answer.
func (p *portion) decode(reply []any) {
	// Convert the values; a text is the error of a key.
	numbers := make([]int64, len(reply))
	var failed map[int]error
	for i, value := range reply {
		switch value := value.(type) {
		case int64:
			numbers[i] = value
		case string:
			if failed == nil {
				failed = map[int]error{}
			}
			failed[i/repliesPerKey] = scriptError(value)
		default:
			p.err = fmt.Errorf("the grant script returned %T in place of a number", value)
			return
		}
	}
	// Decode the answer about each item.
	p.grants = make([]lease.Grant, len(p.items))
	for i := range p.items {
		p.grants[i] = decodeGrant(&p.items[i], numbers[p.places[i]*repliesPerKey:])
	}
	if len(failed) > 0 {
		p.fail(failed)
	}
}

// fail marks the items without an answer: all items of a group whose first key has failed. failed
// has the errors by the index of the key. If no item has an answer, the portion fails with the
// first error.
func (p *portion) fail(failed map[int]error) {
	partial, without := &leases.Partial{Away: make([]time.Duration, len(p.items))}, 0
	for first, n := 0, 0; first < len(p.items); first += n {
		n = leases.Leading(p.items[first:])
		cause := failed[p.places[first]]
		if cause == nil {
			continue
		}
		for i := first; i < first+n; i++ {
			partial.Away[i] = time.Microsecond
		}
		without += n
		if partial.Cause == nil {
			partial.Cause = cause
		}
	}
	p.err = partial
	if without == len(p.items) {
		p.grants, p.err = nil, partial.Cause
	}
}

// scriptError is an error inside the script, about the buckets of one request. It counts as an
// answer of Redis.
type scriptError string

// Error returns the text of Redis.
func (e scriptError) Error() string { return string(e) }

// RedisError implements redis.Error.
func (scriptError) RedisError() {}

// decodeGrant decodes the script's answer about one item.
func decodeGrant(it *leases.Item, r []int64) lease.Grant {
	g := lease.Grant{
		Stale: r[0] == 1, Waiting: r[1], Keep: r[2], NotBefore: quota.Span(r[3]), Level: r[4],
		Delay: quota.Span(r[5]), Term: lease.Term(r[6]),
		Doubt: r[0] == 2,
	}
	if r[3] < 0 {
		g.NotBefore = quota.Never
	}
	switch {
	case it.Ask.Optimistic:
		g.Debt, g.Delay = r[5], 0
	case it.Ask.Windows.Quota != 0 || it.Kind == wire.KindClaim || it.Ask.Owing && it.Ask.Most.Den == 0:
		g.FullAfter, g.Delay = quota.Span(r[5]), 0
	}
	return g
}

// runGrant runs the grant script once. The client of a cluster would send it again after a lost
// connection, and charge twice.
func (s *Store) runGrant(ctx context.Context, keys []string, args []any) *redis.Cmd {
	ctx = access.ForGrants(ctx) // Requests of nodes may be in the same call.
	return outlast(ctx, func(ctx context.Context) *redis.Cmd {
		if s.cluster {
			return s.runOnce(ctx, s.grant, s.source, keys, args)
		}
		return s.grant.Run(ctx, s.client, keys, args...)
	})
}
