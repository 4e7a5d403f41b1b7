package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
)

//go:embed scripts/consumer.lua
var consumerScript string

//go:embed scripts/consumerlog.lua
var consumerLogScript string

var (
	writeConsumer = redis.NewScript(auditScript + consumerScript)
	consumerLog   = redis.NewScript(consumerLogScript)
)

// The keys of consumers, which share a tag since a change touches them all.
const (
	keyConsumers       = "weir:{consumers}:records" // hash: consumer → revision and record
	keyConsumerState   = "weir:{consumers}:state"   // hash: the last revision, and what the log lacks
	keyConsumerChanges = "weir:{consumers}:changes" // sorted set: consumer by revision of its last change
)

var consumerKeys = []string{keyConsumers, keyConsumerState, keyConsumerChanges, keyConsumerAudit}

// Consumers implements consumers.Store.
func (s *Store) Consumers(ctx context.Context, keys []consumers.Key) ([]consumers.Record, uint64, error) {
	fields := make([]string, len(keys))
	for i := range keys {
		fields[i] = hex.EncodeToString(keys[i][:])
	}
	// One after the other: the revision first, so that the records are no older.
	pipe := s.client.Pipeline()
	last, values := pipe.HGet(ctx, keyConsumerState, "rev"), pipe.HMGet(ctx, keyConsumers, fields...)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, 0, err
	}
	revision, err := orZero(last.Uint64())
	if err != nil {
		return nil, 0, err
	}
	records := make([]consumers.Record, len(keys))
	for i, value := range values.Val() {
		if text, ok := value.(string); ok {
			if records[i], err = consumers.Decode(text); err != nil {
				return nil, 0, err
			}
		}
	}
	return records, revision, values.Err()
}

// ListConsumers implements consumers.Store: the token is Redis' cursor.
func (s *Store) ListConsumers(ctx context.Context, token string, limit int) (out []consumers.Listed, next string, err error) {
	var cursor uint64
	if token != "" {
		if cursor, err = strconv.ParseUint(token, 10, 64); err != nil {
			return nil, "", consumers.ErrToken
		}
	}
	fields, cursor, err := s.client.HScan(ctx, keyConsumers, cursor, "", int64(limit)).Result()
	if err != nil {
		return nil, "", err
	}
	for i := 0; i+1 < len(fields); i += 2 {
		var one consumers.Listed
		if n, err := hex.Decode(one.Key[:], []byte(fields[i])); err != nil || n != len(one.Key) {
			return nil, "", fmt.Errorf("%s does not hold the hash of a consumer: %q", keyConsumers, fields[i])
		}
		if one.Record, err = consumers.Decode(fields[i+1]); err != nil {
			return nil, "", err
		}
		out = append(out, one)
	}
	if cursor != 0 {
		next = strconv.FormatUint(cursor, 10)
	}
	return out, next, nil
}

// WriteConsumer implements consumers.Store.
func (s *Store) WriteConsumer(ctx context.Context, w consumers.Write) (uint64, error) {
	expected, record := "*", ""
	if !w.Any {
		expected = strconv.FormatUint(w.Expected, 10)
	}
	if w.Record != nil {
		var err error
		if record, err = w.Record.Encode(); err != nil {
			return 0, err
		}
	}
	entry, err := w.Entry.Encode()
	if err != nil {
		return 0, err
	}
	reply, err := writeConsumer.Run(ctx, s.client, consumerKeys, hex.EncodeToString(w.Key[:]), expected, record, consumers.KeptChanges,
		entry, audit.Kept).Text()
	switch {
	case err != nil:
		return 0, err
	case reply == "0":
		return 0, consumers.ErrConflict
	case reply == "-1":
		return 0, consumers.ErrNotFound
	}
	return strconv.ParseUint(reply, 10, 64)
}

// ConsumerRevision implements consumers.Store.
func (s *Store) ConsumerRevision(ctx context.Context) (uint64, error) {
	return orZero(s.client.HGet(ctx, keyConsumerState, "rev").Uint64())
}

func orZero(n uint64, err error) (uint64, error) {
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}

// ConsumerLog implements consumers.Store.
func (s *Store) ConsumerLog(ctx context.Context) (consumers.Log, error) {
	reply, err := consumerLog.Run(ctx, s.client, consumerKeys).StringSlice()
	if err != nil {
		return consumers.Log{}, err
	}
	if len(reply)%3 != 0 || len(reply) == 0 {
		return consumers.Log{}, fmt.Errorf("the script answered with %d values", len(reply))
	}
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(reply[i], 10, 64); err != nil {
			return consumers.Log{}, err
		}
	}
	l := consumers.Log{Revision: numbers[0], Floor: numbers[1], Whole: numbers[1] < numbers[2]}
	for at := 3; at < len(reply); at += 3 {
		c, err := decodeChange(reply[at], reply[at+1], reply[at+2])
		if err != nil {
			return consumers.Log{}, err
		}
		l.Changes = append(l.Changes, c)
	}
	return l, nil
}

func decodeChange(key, revision, stored string) (c consumers.Change, err error) {
	if n, e := hex.Decode(c.Key[:], []byte(key)); e != nil || n != len(c.Key) {
		return c, fmt.Errorf("%s does not hold the hash of a consumer: %q", keyConsumerChanges, key)
	}
	if c.Revision, err = strconv.ParseUint(revision, 10, 64); err != nil || stored == "" {
		return c, err
	}
	r, err := consumers.Decode(stored)
	c.Tier = r.Tier
	return c, err
}
