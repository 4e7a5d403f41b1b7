package redisstore

import (
	"context"
	_ "embed" // for the script
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

//go:embed scripts/settle.lua
var settleScript string

var settleBucket = redis.NewScript(settleScript)

// Settle implements leases.Settler. Like Adjust it changes the states here and puts them back if
// they are still the same. The draft of a rollout is settled with the main one.
func (s *Store) Settle(ctx context.Context, r leases.Reservation, ask lease.Ask, actual int64) (bool, error) {
	tag := bucketTag(r.Bucket)
	main := bucketKey(r.Bucket, ask.Windows.Quota != 0)
	keys := []string{fmt.Sprintf("%s:reserved:%016x:%d", main, r.Name, r.Nth), main, main + draftSuffix}
	for range adjustTries {
		record, now, _, err := s.bucket(ctx, keys[0], tag)
		if err != nil || record == "" {
			return false, err
		}
		var taken quota.Reservation
		if _, err := fmt.Sscanf(record, "%d %d %d", &taken.From, &taken.At, &taken.Tokens); err != nil {
			return false, nil // No grant can have left it.
		}
		args := []any{record}
		for _, key := range keys[1:] {
			raw, _, _, err := s.bucket(ctx, key, tag)
			if err != nil {
				return false, err
			}
			state, expiry := settled(raw, key == main, now, ask, taken, actual)
			args = append(args, raw, state, expiry)
		}
		done, err := settleBucket.Run(ctx, s.client, keys, args...).Int()
		if err != nil || done == 1 {
			return err == nil, err
		}
	}
	return false, leases.ErrBusy
}

// settled is a state after a settlement, empty if it stays, and until when it must be kept, in
// milliseconds. A main one that is absent was full.
func settled(
	raw string, main bool, now quota.Instant, ask lease.Ask, taken quota.Reservation, actual int64,
) (state []byte, expiry int64) {
	kept := func(forgettable quota.Instant) int64 {
		return int64(max(forgettable, now))/int64(quota.Millisecond) + 2
	}
	if ask.Windows.Quota == 0 {
		l, ok := readLedger(raw)
		if !ok && (raw != "" || !main) {
			return nil, 0
		}
		l, back := l.Settle(now, ask, taken, actual)
		if back == 0 {
			return nil, 0
		}
		return packLedger(l), kept(l.Forgettable())
	}
	l, ok := readWindows(raw)
	if !ok {
		return nil, 0
	}
	l, back := l.Settle(now, taken, actual)
	if back == 0 {
		return nil, 0
	}
	return packWindows(l), kept(l.Forgettable())
}
