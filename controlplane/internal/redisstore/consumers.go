package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"math"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

//go:embed scripts/consumer.lua
var consumerScript string

//go:embed scripts/consumerlog.lua
var consumerLogScript string

//go:embed scripts/consumers.lua
var consumersScript string

var (
	writeConsumers = redis.NewScript(auditScript + consumerScript)
	consumerLog    = redis.NewScript(consumerLogScript)
	readConsumers  = redis.NewScript(consumersScript)
)

// The keys of consumers share a tag, since a change touches them all.
const (
	keyConsumers       = "weir:{consumers}:records" // hash: consumer → revision and record
	keyConsumerState   = "weir:{consumers}:state"   // hash: the last revisions, and what the log lacks
	keyConsumerChanges = "weir:{consumers}:changes" // sorted set: consumer by revision of its last change
	keyConsumerSpecial = "weir:{consumers}:special" // sorted set: consumer by when it has no more than a tier
	keyConsumerBanned  = "weir:{consumers}:banned"  // sorted set: consumer by when its ban ends
)

var consumerKeys = []string{
	keyConsumers, keyConsumerState, keyConsumerChanges, keyConsumerAudit, keyConsumerSpecial, keyConsumerBanned,
}

// Consumers implements consumers.Store.
func (s *Store) Consumers(ctx context.Context, keys []keyhash.Key) ([]consumers.Record, consumers.State, error) {
	fields := make([]any, len(keys))
	for i := range keys {
		fields[i] = keys[i].String()
	}
	var reply []string
	err := s.guarded(ctx, keyConsumers, func() (err error) {
		reply, err = readConsumers.Run(ctx, s.client, consumerKeys, fields...).StringSlice()
		return err
	})
	if err != nil {
		return nil, consumers.State{}, s.consumersAway(ctx, err)
	}
	if len(reply) != 2+len(keys) {
		return nil, consumers.State{}, fmt.Errorf("the script answered with %d values", len(reply))
	}
	numbers, err := uints(reply[:2])
	if err != nil {
		return nil, consumers.State{}, err
	}
	records := make([]consumers.Record, len(keys))
	for i, stored := range reply[2:] {
		if stored != "" {
			records[i], err = consumers.Decode(stored)
			if err != nil {
				return nil, consumers.State{}, err
			}
		}
	}
	return records, consumers.State{Revision: numbers[0], ExceptionsRevision: numbers[1]}, nil
}

// consumersAway converts a failure in a cluster whose other servers answer into one of the server
// that keeps the consumers.
func (s *Store) consumersAway(ctx context.Context, cause error) error {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok || s.allAway() {
		return cause
	}
	primary, err := cluster.MasterForKey(ctx, keyConsumers)
	if err != nil {
		return cause
	}
	return &consumers.AwayError{For: s.breakers.Failing(primary.Options().Addr), Cause: cause}
}

// ListConsumers implements consumers.Store: the token is Redis' cursor.
func (s *Store) ListConsumers(
	ctx context.Context, list consumers.List,
) (out []consumers.Listed, next string, err error) {
	var cursor uint64
	if list.Token != "" {
		cursor, err = strconv.ParseUint(list.Token, 10, 64)
		if err != nil {
			return nil, "", consumers.ErrToken
		}
	}
	if list.Banned {
		out, cursor, err = s.scanBanned(ctx, cursor, list.Limit)
	} else {
		out, cursor, err = s.scanConsumers(ctx, cursor, list.Limit)
	}
	if cursor != 0 {
		next = strconv.FormatUint(cursor, 10)
	}
	return out, next, err
}

func (s *Store) scanConsumers(
	ctx context.Context, from uint64, limit int,
) (out []consumers.Listed, cursor uint64, err error) {
	fields, cursor, err := s.client.HScan(ctx, keyConsumers, from, "", int64(limit)).Result()
	for i := 0; err == nil && i+1 < len(fields); i += 2 {
		var one consumers.Listed
		one.Key, err = consumerOf(keyConsumers, fields[i])
		if err != nil {
			break
		}
		one.Record, err = consumers.Decode(fields[i+1])
		out = append(out, one)
	}
	return out, cursor, err
}

func (s *Store) scanBanned(ctx context.Context, from uint64, limit int) ([]consumers.Listed, uint64, error) {
	members, cursor, err := s.client.ZScan(ctx, keyConsumerBanned, from, "", int64(limit)).Result()
	if err != nil {
		return nil, 0, err
	}
	var keys []string
	for i := 0; i+1 < len(members); i += 2 {
		keys = append(keys, members[i])
	}
	out, err := s.records(ctx, keyConsumerBanned, keys)
	return out, cursor, err
}

// records returns the records of consumers that another key lists.
func (s *Store) records(ctx context.Context, of string, fields []string) (out []consumers.Listed, err error) {
	if len(fields) == 0 {
		return nil, nil
	}
	values, err := s.client.HMGet(ctx, keyConsumers, fields...).Result()
	for i := 0; err == nil && i < len(values); i++ {
		stored, ok := values[i].(string)
		if !ok {
			continue // It was deleted meanwhile.
		}
		var one consumers.Listed
		one.Key, err = consumerOf(of, fields[i])
		if err == nil {
			one.Record, err = consumers.Decode(stored)
		}
		out = append(out, one)
	}
	return out, err
}

func consumerOf(key, field string) (k keyhash.Key, err error) {
	k, err = keyhash.Parse(field)
	if err != nil {
		err = fmt.Errorf("%s is damaged: %w", key, err)
	}
	return k, err
}

// BannedConsumers implements consumers.Store.
func (s *Store) BannedConsumers(ctx context.Context, limit int) ([]consumers.Listed, error) {
	const page = 1000
	var out []consumers.Listed
	for end := -1; len(out) < limit; end -= page {
		start := end - min(page, limit-len(out)) + 1
		fields, err := s.client.ZRange(ctx, keyConsumerBanned, int64(start), int64(end)).Result()
		if err != nil {
			return nil, err
		}
		some, err := s.records(ctx, keyConsumerBanned, fields)
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
		if len(fields) < page {
			break
		}
	}
	return out, nil
}

// WriteConsumers implements consumers.Store.
func (s *Store) WriteConsumers(ctx context.Context, c consumers.Changes) (uint64, error) {
	entry, err := c.Entry.Encode()
	if err != nil {
		return 0, err
	}
	args := append(make([]any, 0, 4+5*len(c.Writes)), consumers.KeptChanges, entry, audit.Kept, c.ExceptionsRevision)
	for _, w := range c.Writes {
		expected, record := "*", ""
		if !w.Any {
			expected = strconv.FormatUint(w.Expected, 10)
		}
		if w.Record != nil {
			record, err = w.Record.Encode()
			if err != nil {
				return 0, err
			}
		}
		special, banned := w.Record.Ends()
		args = append(args, w.Key.String(), expected, record, score(special), score(banned))
	}
	reply, err := writeConsumers.Run(ctx, s.client, consumerKeys, args...).Text()
	switch {
	case err != nil:
		return 0, err
	case reply == "0":
		return 0, errs.Conflict
	case reply == "-1":
		return 0, consumers.ErrNotFound
	}
	return strconv.ParseUint(reply, 10, 64)
}

// score is an end as Redis sorts it.
func score(end int64) string {
	if end == math.MaxInt64 {
		return "+inf"
	}
	return strconv.FormatInt(end, 10)
}

// ConsumerRevision implements consumers.Store.
func (s *Store) ConsumerRevision(ctx context.Context) (uint64, error) {
	texts, err := s.readParts(ctx, s.client, []reading{readConsumerState})
	if err != nil {
		return 0, err
	}
	return revisionOf(texts[0])
}

// ConsumerLog implements consumers.Store.
func (s *Store) ConsumerLog(ctx context.Context, after uint64) (consumers.Log, error) {
	reply, err := consumerLog.Run(ctx, s.client, consumerKeys, after).StringSlice()
	if err != nil {
		return consumers.Log{}, err
	}
	const head = 5
	if len(reply)%3 != head%3 || len(reply) < head {
		return consumers.Log{}, fmt.Errorf("the script answered with %d values", len(reply))
	}
	numbers, err := uints(reply[:head])
	if err != nil {
		return consumers.Log{}, err
	}
	l := consumers.Log{
		State: consumers.State{Revision: numbers[0], ExceptionsRevision: numbers[3], Special: numbers[4] > 0},
		Floor: numbers[1], Whole: numbers[1] < numbers[2],
	}
	for at := head; at < len(reply); at += 3 {
		c, err := decodeChange(reply[at], reply[at+1], reply[at+2])
		if err != nil {
			return consumers.Log{}, err
		}
		l.Changes = append(l.Changes, c)
	}
	return l, nil
}

func decodeChange(key, revision, stored string) (c consumers.Change, err error) {
	c.Key, err = consumerOf(keyConsumerChanges, key)
	if err != nil {
		return c, err
	}
	c.Revision, err = strconv.ParseUint(revision, 10, 64)
	if err != nil || stored == "" {
		return c, err
	}
	c.Record, err = consumers.Decode(stored)
	return c, err
}

func uints(texts []string) (numbers []uint64, err error) {
	for _, text := range texts {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
