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
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/adjust.lua
var adjustScript string

//go:embed scripts/bucket.lua
var bucketScript string

var replaceBucket = redis.NewScript(auditScript + adjustScript)

// Adjust implements leases.Buckets. The arithmetic is that of the Go code: it reads the state,
// changes it here, and puts it back if it is still the same.
func (s *Store) Adjust(
	ctx context.Context, bucket keyhash.Key, ask lease.Ask, c lease.Change, entry audit.Entry,
) (lease.Holding, error) {
	text, err := entry.Encode()
	if err != nil {
		return lease.Holding{}, err
	}
	tag := bucketTag(bucket)
	key := bucketKey(bucket, ask.Windows.Quota != 0)
	for range leases.Attempts {
		raw, now, lost, err := s.bucket(ctx, key, tag)
		if err != nil {
			return lease.Holding{}, err
		}
		state, forgettable, held := s.adjusted(raw, now, lost, ask, c)
		if c == (lease.Change{}) || held.Stale {
			return held, nil
		}
		expiry := max(int64(forgettable), int64(now))/int64(quota.Millisecond) + 2
		keys := []string{key, auditKey(hex.EncodeToString([]byte{tag}))}
		done, err := replaceBucket.Run(ctx, s.client, keys, raw, state, expiry, text, keptOfBuckets).Int()
		if err != nil || done == 1 {
			return held, err
		}
	}
	return lease.Holding{}, leases.ErrBusy
}

// bucket reads a bucket's state, empty if there is none, with Redis' time and the time at which the
// state of its tag was last lost.
func (s *Store) bucket(ctx context.Context, key string, tag byte) (raw string, now, lost quota.Instant, err error) {
	reply, err := s.read.Run(ctx, s.client, []string{key, lostKey(tag)}).StringSlice()
	if err != nil {
		return "", 0, 0, err
	}
	if len(reply) != 3 {
		return "", 0, 0, fmt.Errorf("the script answered with %d values", len(reply))
	}
	at, err := strconv.ParseInt(reply[2], 10, 64)
	if err != nil {
		return "", 0, 0, err
	}
	now, lost = quota.Instant(at), quota.Instant(at) // Without the marker everything is lost.
	if at, err := strconv.ParseInt(reply[1], 10, 64); err == nil {
		lost = quota.Instant(at)
	}
	return reply[0], now, lost, nil
}

// adjusted returns a state after a change, and until when it must be kept.
func (s *Store) adjusted(
	raw string, now, lost quota.Instant, ask lease.Ask, c lease.Change,
) (state []byte, forgettable quota.Instant, held lease.Holding) {
	doubt := now < leases.DoubtfulUntil(lost, ask)
	if ask.Windows.Quota != 0 {
		l, ok := readWindows(raw)
		if !ok && (raw != "" || doubt) {
			l = lease.FreshWindows(ask, now, s.fill)
		}
		l, held = l.Adjust(now, ask, c)
		return packWindows(l), l.Forgettable(), held
	}
	l, ok := readLedger(raw)
	if !ok && (raw != "" || doubt) {
		l = lease.Fresh(ask.Params, ask.Version, now, s.fill)
	}
	l, held = l.Adjust(now, ask, c)
	return packLedger(l), l.Forgettable(), held
}
