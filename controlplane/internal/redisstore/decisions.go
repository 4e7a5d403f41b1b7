package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/decisions"
)

//go:embed scripts/decide.lua
var decideScript string

//go:embed scripts/top.lua
var topScript string

var (
	keepDecisions = redis.NewScript(auditScript + decideScript)
	putTop        = redis.NewScript(topScript)
)

const (
	keyDecisions = "weir:{decisions}:recent" // sorted set: refusals by when they were reported
	keyTops      = "weir:{decisions}:tops"   // hash: replica → its heaviest callers, JSON
	keyTopsSeen  = "weir:{decisions}:told"   // sorted set: replica by when it stored them, ms
)

// noReply is the error of a script that returns nothing.
func noReply(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// AppendDecisions implements decisions.Store.
func (s *Store) AppendDecisions(ctx context.Context, list []decisions.Decision) error {
	args := []any{decisions.Kept, decisions.Age.Milliseconds()}
	for _, d := range list {
		text, err := d.Encode()
		if err != nil {
			return err
		}
		args = append(args, text)
	}
	return s.guarded(ctx, keyDecisions, func() error {
		return noReply(keepDecisions.Run(ctx, s.client, []string{keyDecisions}, args...).Err())
	})
}

// Decisions implements decisions.Store.
func (s *Store) Decisions(ctx context.Context, before string, limit int) ([]decisions.Decision, error) {
	from := "+inf"
	if before != "" {
		number, err := decisions.Number(before)
		if err != nil {
			return nil, err
		}
		from = "(" + strconv.FormatUint(number, 10)
	}
	list, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{
		Key: keyDecisions, Start: from, Stop: "-inf", ByScore: true, Rev: true, Count: int64(limit),
	}).Result()
	if err != nil {
		return nil, err
	}
	out := make([]decisions.Decision, 0, len(list))
	for _, stored := range list {
		d, err := decisions.Decode(stored)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// PutTop implements decisions.Store.
func (s *Store) PutTop(ctx context.Context, replica string, text []byte) error {
	return s.guarded(ctx, keyTops, func() error {
		age := decisions.TopAge.Milliseconds()
		return noReply(putTop.Run(ctx, s.client, []string{keyTops, keyTopsSeen}, replica, text, age).Err())
	})
}

// Tops implements decisions.Store.
func (s *Store) Tops(ctx context.Context) (map[string][]byte, error) {
	replicas, err := s.client.HKeys(ctx, keyTops).Result()
	if err != nil || len(replicas) == 0 {
		return nil, err
	}
	values, err := s.client.HMGet(ctx, keyTops, replicas...).Result()
	if err != nil {
		return nil, err
	}
	told := map[string][]byte{}
	for i, value := range values {
		if text, ok := value.(string); ok {
			told[replicas[i]] = []byte(text)
		}
	}
	return told, nil
}
