package redisstore

import (
	"context"
	_ "embed" // for the script
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/adjust.lua
var adjustScript string

//go:embed scripts/bucket.lua
var bucketScript string

var replaceBucket = redis.NewScript(auditScript + adjustScript)

// Adjust implements leases.Buckets. It does the arithmetic in Go: it reads both ledgers, changes
// one of them here, and writes it back if both are unchanged in Redis.
func (s *Store) Adjust(
	ctx context.Context, it leases.Item, c lease.Change, entry audit.Entry,
) (lease.Holding, error) {
	// Encode the audit entry, if the change has an entry.
	text := ""
	if entry.Action != "" {
		var err error
		if text, err = entry.Encode(); err != nil {
			return lease.Holding{}, err
		}
	}
	tag := bucketTag(it.Bucket)
	key := bucketKey(it.Bucket, it.Ask.Windows.Quota != 0)
	// Read, change and write, until no other writer comes in between.
	for range leases.Attempts {
		raw, now, lost, err := s.readBucket(ctx, key, tag)
		if err != nil {
			return lease.Holding{}, err
		}
		state, forgettable, held := s.applyChange(raw, now, lost, it, c)
		if c == (lease.Change{}) || held.Stale {
			return held, nil
		}
		// Write the ledger of the item, main or draft, on the condition that both ledgers are as
		// they were read.
		keys := []string{key, key + draftSuffix, auditKey(hex.EncodeToString([]byte{tag}))}
		if it.Draft {
			keys[0], keys[1], raw = keys[1], keys[0], twins{raw.draft, raw.main}
			forgettable = max(forgettable, now+quota.Instant(ledgerLife(&it)))
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

// twins holds the stored ledgers of a bucket; a text is empty if there is no such ledger.
type twins struct{ main, draft string }

// readBucket reads the ledgers of a bucket. It also returns the time of Redis, and the time of the
// last loss of state of the bucket's tag.
func (s *Store) readBucket(ctx context.Context, key string, tag byte) (raw twins, now, lost quota.Instant, err error) {
	reply, err := s.read.Run(ctx, s.client, []string{key, key + draftSuffix, lostKey(tag)}).StringSlice()
	if err != nil {
		return raw, 0, 0, err
	}
	const values = 4
	if len(reply) != values {
		return raw, 0, 0, fmt.Errorf("cannot read the script's answer: it has %d values, not %d", len(reply), values)
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

// applyChange returns the ledger after a change, and the instant until which the store must keep
// it.
func (s *Store) applyChange(
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

// ledgerOf returns the ledger that an item uses: the draft's or the main ledger.
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
