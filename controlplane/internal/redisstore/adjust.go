package redisstore

import (
	"context"
	_ "embed" // for the script
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/adjust.lua
var adjustScript string

//go:embed scripts/bucket.lua
var bucketScript string

var replaceBucket = redis.NewScript(auditScript + adjustScript)

// Adjust implements leases.Buckets. The arithmetic is that of the Go code: it reads both ledgers,
// changes one here, and puts it back if they are still the same.
func (s *Store) Adjust(
	ctx context.Context, it leases.Item, c lease.Change, entry audit.Entry,
) (lease.Holding, error) {
	text := ""
	if entry.Action != "" {
		var err error
		if text, err = entry.Encode(); err != nil {
			return lease.Holding{}, err
		}
	}
	tag := bucketTag(it.Bucket)
	key := bucketKey(it.Bucket, it.Ask.Windows.Quota != 0)
	for range leases.Attempts {
		raw, now, lost, err := s.bucket(ctx, key, tag)
		if err != nil {
			return lease.Holding{}, err
		}
		state, forgettable, held := s.adjusted(raw, now, lost, it, c)
		if c == (lease.Change{}) || held.Stale {
			return held, nil
		}
		keys := []string{key, key + draftSuffix, auditKey(hex.EncodeToString([]byte{tag}))}
		if it.Draft {
			keys[0], keys[1], raw = keys[1], keys[0], twins{raw.draft, raw.main}
			forgettable = max(forgettable, now+quota.Instant(outlives(&it)))
		}
		expiry := max(int64(forgettable), int64(now))/int64(quota.Millisecond) + 2
		done, err := replaceBucket.Run(ctx, s.client, keys, raw.main, raw.draft, state, expiry, text,
			keptOfBuckets).Int()
		if err != nil || done == 1 {
			return held, err
		}
	}
	return lease.Holding{}, leases.ErrBusy
}

// twins are the ledgers of a bucket as they are stored, empty if there is none.
type twins struct{ main, draft string }

// bucket reads a bucket's ledgers, with Redis' time and the time at which the state of its tag was
// last lost.
func (s *Store) bucket(ctx context.Context, key string, tag byte) (raw twins, now, lost quota.Instant, err error) {
	reply, err := s.read.Run(ctx, s.client, []string{key, key + draftSuffix, lostKey(tag)}).StringSlice()
	if err != nil {
		return raw, 0, 0, err
	}
	if len(reply) != 4 {
		return raw, 0, 0, fmt.Errorf("the script answered with %d values", len(reply))
	}
	at, err := strconv.ParseInt(reply[3], 10, 64)
	if err != nil {
		return raw, 0, 0, err
	}
	now, lost = quota.Instant(at), quota.Instant(at) // Without the marker everything is lost.
	if at, err := strconv.ParseInt(reply[2], 10, 64); err == nil {
		lost = quota.Instant(at)
	}
	return twins{reply[0], reply[1]}, now, lost, nil
}

// adjusted returns a ledger after a change, and until when it must be kept.
func (s *Store) adjusted(
	raw twins, now, lost quota.Instant, it leases.Item, c lease.Change,
) (state []byte, forgettable quota.Instant, held lease.Holding) {
	ask := it.Ask
	doubt := now < leases.DoubtfulUntil(lost, ask)
	if ask.Windows.Quota != 0 {
		l := ledgerOf(raw, it, doubt, readWindows, func() lease.WindowLedger {
			return lease.FreshWindows(ask, now, s.fill)
		})
		l, held = l.Adjust(now, ask, c)
		held.Doubt = leases.InDoubt(lost, now, s.fill, ask)
		return packWindows(l), l.Forgettable(), held
	}
	l := ledgerOf(raw, it, doubt, readLedger, func() lease.Ledger {
		return lease.Fresh(ask.Params, ask.Version, now, s.fill)
	})
	l, held = l.Adjust(now, ask, c)
	held.Doubt = leases.InDoubt(lost, now, s.fill, ask)
	return packLedger(l), l.Forgettable(), held
}

// ledgerOf is the ledger of a bucket that an item is about.
func ledgerOf[L lease.Counted[L]](
	raw twins, it leases.Item, doubt bool, read func(string) (L, bool), fresh func() L,
) L {
	var pair lease.Twins[L]
	var known bool
	if pair.Main, known = read(raw.main); !known && (raw.main != "" || doubt) {
		pair.Main = fresh()
	}
	pair.Draft, _ = read(raw.draft)
	if it.Draft {
		return pair.Started(it.Ask)
	}
	return pair.Promoted(it.Ask)
}
