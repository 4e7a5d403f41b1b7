package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
)

//go:embed scripts/decide.lua
var decideScript string

var keepDecisions = redis.NewScript(auditScript + decideScript)

// keyDecisions is a sorted set of refusals by the time of their report.
const keyDecisions = "weir:{decisions}:recent"

// ignoreNil returns the error of a script that returns nothing.
func ignoreNil(err error) error {
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
		return ignoreNil(keepDecisions.Run(ctx, s.client, []string{keyDecisions}, args...).Err())
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
