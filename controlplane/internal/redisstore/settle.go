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
		read, err := s.read.Run(ctx, s.client, []string{keys[0], lostKey(tag), keys[1], keys[2]}).StringSlice()
		if err != nil || len(read) != 5 || read[0] == "" {
			return false, err
		}
		record, at, states := read[0], read[2], read[3:]
		var now quota.Instant
		var taken quota.Reservation
		if _, err := fmt.Sscan(at+" "+record, &now, &taken.From, &taken.At, &taken.Tokens); err != nil {
			return false, nil // No grant can have left it.
		}
		args := []any{record}
		for i, raw := range states {
			state, expiry := settled(raw, i == 0, now, ask, taken, actual)
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
// milliseconds.
func settled(
	raw string, main bool, now quota.Instant, ask lease.Ask, taken quota.Reservation, actual int64,
) (state []byte, expiry int64) {
	if ask.Windows.Quota == 0 {
		l, ok := readLedger(raw)
		return settledAs(l, ok || raw == "" && main, packLedger, now, ask, taken, actual)
	}
	l, ok := readWindows(raw)
	return settledAs(l, ok || raw == "" && main, packWindows, now, ask, taken, actual)
}

// settledAs settles a ledger that counts. An absent main one counts as an unused one.
func settledAs[L lease.Counted[L]](
	l L, counts bool, pack func(L) []byte,
	now quota.Instant, ask lease.Ask, taken quota.Reservation, actual int64,
) (state []byte, expiry int64) {
	if !counts {
		return nil, 0
	}
	after, back := l.Settle(now, ask, taken, actual)
	if back == 0 {
		return nil, 0
	}
	return pack(after), int64(max(after.Forgettable(), now))/int64(quota.Millisecond) + 2
}
