package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

//go:embed scripts/commit.lua
var commitScript string

//go:embed scripts/read.lua
var readScript string

var (
	commitRecords = redis.NewScript(auditScript + commitScript)
	readRecords   = redis.NewScript(readScript)
)

// topicPage is the maximum number of records in one read.
const topicPage = 1000

// recordKeys returns the keys of a topic: its records, its state, its log, its audit list, and each
// index.
func recordKeys(t *docs.Topic) []string {
	keys := []string{topicKey(t, "records"), topicKey(t, "state"), topicKey(t, "changes"), auditKey(t.Tag)}
	for _, index := range t.Indexes {
		keys = append(keys, topicKey(t, index))
	}
	return keys
}

// topicKey returns the key of a part of a topic. All parts share a tag, since a commit changes them
// all.
func topicKey(t *docs.Topic, part string) string { return "weir:{" + t.Tag + "}:" + part }

// Read implements docs.Records.
func (s *Store) Read(
	ctx context.Context, t *docs.Topic, keys []keyhash.Key,
) ([]docs.Record, docs.State, error) {
	args := append(make([]any, 0, 1+len(keys)), "of")
	for i := range keys {
		args = append(args, keys[i].String())
	}
	reply, state, err := s.readTopic(ctx, t, args)
	if err == nil && len(reply) != len(keys) {
		err = fmt.Errorf("cannot read the script's answer: it has %d records, not %d", len(reply), len(keys))
	}
	if err != nil {
		return nil, state, err
	}
	records := make([]docs.Record, len(keys))
	for i, stored := range reply {
		records[i], err = recordOf(t, keys[i].String(), stored)
		if err != nil {
			return nil, state, err
		}
	}
	return records, state, nil
}

// readTopic reads the state of a topic, and returns the rest of the script's answer.
func (s *Store) readTopic(
	ctx context.Context, t *docs.Topic, args []any,
) (rest []string, state docs.State, err error) {
	keys := recordKeys(t)
	var reply []string
	err = s.guarded(ctx, keys[0], func() (err error) {
		reply, err = readRecords.Run(ctx, s.client, keys, args...).StringSlice()
		return err
	})
	if err != nil {
		return nil, state, s.topicAway(ctx, t, err)
	}
	const head = 7
	if len(reply) < head {
		return nil, state, fmt.Errorf("cannot read the script's answer: it has %d values, not %d or more",
			len(reply), head)
	}
	numbers, err := parseUints(reply[:head])
	if err != nil {
		return nil, state, fmt.Errorf("%s is damaged: %w", keys[1], err)
	}
	state = docs.State{
		Head:  docs.Head{First: numbers[0], Revision: numbers[1], Cleared: numbers[2]},
		Floor: numbers[3], IndexRevision: numbers[4], Logged: int(numbers[5]), Live: numbers[6] > 0,
	}
	return reply[head:], state, nil
}

// topicAway names the topic in a failure, if other servers of the cluster still answer.
func (s *Store) topicAway(ctx context.Context, t *docs.Topic, cause error) error {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok || s.allAway() {
		return cause
	}
	primary, err := cluster.MasterForKey(ctx, topicKey(t, "records"))
	if err != nil {
		return cause
	}
	return &docs.AwayError{Tag: t.Tag, For: s.breakers.Failing(primary.Options().Addr), Cause: cause}
}

// recordOf decodes a stored record: its revision, a space, and its value.
func recordOf(t *docs.Topic, field, stored string) (r docs.Record, err error) {
	r.Key, err = keyhash.Parse(field)
	if err == nil && stored != "" {
		revision, value, _ := strings.Cut(stored, " ")
		r.Revision, err = strconv.ParseUint(revision, 10, 64)
		r.Value = []byte(value)
	}
	if err != nil {
		return r, fmt.Errorf("%s is damaged: %w", topicKey(t, "records"), err)
	}
	return r, nil
}

// Since implements docs.Records.
func (s *Store) Since(
	ctx context.Context, t *docs.Topic, after uint64, limit int,
) (changes []docs.Record, state docs.State, err error) {
	reply, state, err := s.readTopic(ctx, t, []any{"since", strconv.FormatUint(after, 10), limit})
	if err == nil && len(reply)%3 != 0 {
		err = fmt.Errorf("cannot read the script's answer: it has %d values, not 3 for each change", len(reply))
	}
	for at := 0; err == nil && at < len(reply); at += 3 {
		var r docs.Record
		r, err = recordOf(t, reply[at], reply[at+2])
		if err == nil {
			r.Revision, err = strconv.ParseUint(reply[at+1], 10, 64)
		}
		changes = append(changes, r)
	}
	return changes, state, err
}

// Scan implements docs.Records. The cursor is the cursor of Redis.
func (s *Store) Scan(
	ctx context.Context, t *docs.Topic, index, cursor string, limit int,
) (records []docs.Record, next string, err error) {
	// Decode the cursor.
	var from uint64
	if cursor != "" {
		from, err = strconv.ParseUint(cursor, 10, 64)
		if err != nil {
			return nil, "", docs.ErrCursor
		}
	}
	// Without an index scan all records; with one scan its members and read their records.
	if index == "" {
		var fields []string
		fields, from, err = s.client.HScan(ctx, topicKey(t, "records"), from, "", int64(limit)).Result()
		for i := 0; err == nil && i+1 < len(fields); i += 2 {
			var r docs.Record
			r, err = recordOf(t, fields[i], fields[i+1])
			records = append(records, r)
		}
	} else {
		var members []string
		members, from, err = s.client.ZScan(ctx, topicKey(t, index), from, "", int64(limit)).Result()
		var fields []string
		for i := 0; i+1 < len(members); i += 2 {
			fields = append(fields, members[i])
		}
		if err == nil {
			records, err = s.readListed(ctx, t, fields)
		}
	}
	if from != 0 {
		next = strconv.FormatUint(from, 10)
	}
	return records, next, err
}

// readListed returns the records of the fields of an index, without records that were deleted
// since.
func (s *Store) readListed(ctx context.Context, t *docs.Topic, fields []string) (records []docs.Record, err error) {
	keys := make([]keyhash.Key, len(fields))
	for i, field := range fields {
		keys[i], err = keyhash.Parse(field)
		if err != nil {
			return nil, fmt.Errorf("an index of %s is damaged: %w", topicKey(t, "records"), err)
		}
	}
	for some := range slices.Chunk(keys, topicPage) {
		found, _, err := s.Read(ctx, t, some)
		if err != nil {
			return nil, err
		}
		records = append(records, found...)
	}
	return slices.DeleteFunc(records, func(r docs.Record) bool { return r.Revision == 0 }), nil
}

// Last implements docs.Records.
func (s *Store) Last(ctx context.Context, t *docs.Topic, index string, limit int) (all []docs.Record, err error) {
	for end := -1; len(all) < limit; end -= topicPage {
		start := end - min(topicPage, limit-len(all)) + 1
		fields, err := s.client.ZRange(ctx, topicKey(t, index), int64(start), int64(end)).Result()
		if err != nil {
			return nil, err
		}
		some, err := s.readListed(ctx, t, fields)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		if len(fields) < topicPage {
			break
		}
	}
	return all, nil
}

// commitErrors are the answers of the script that are not revisions.
var commitErrors = map[string]error{"conflict": errs.Conflict, "none": errs.NotFound, "full": docs.ErrFull}

// Commit implements docs.Records.
func (s *Store) Commit(ctx context.Context, t *docs.Topic, c docs.Commit) (revision uint64, err error) {
	// Encode the arguments of the whole commit, then each change.
	entry, cleared := "", "*"
	if c.Entry.Action != "" {
		entry, err = c.Entry.Encode()
		if err != nil {
			return 0, err
		}
	}
	if c.Cleared != nil {
		cleared = strconv.FormatUint(*c.Cleared, 10)
	}
	args := append(make([]any, 0, 9+(3+len(t.Indexes))*len(c.Changes)), t.Kept, flagText(t.Whole), flagText(t.Expires),
		flagText(c.Clear), cleared, strconv.FormatUint(c.IndexRevision, 10), entry, flagText(c.WithBefore), audit.Kept)
	for i := range c.Changes {
		args, err = appendChange(args, t, &c.Changes[i])
		if err != nil {
			return 0, err
		}
	}
	// Run the script.
	keys := recordKeys(t)
	var reply string
	err = s.guarded(ctx, keys[0], func() (err error) {
		reply, err = commitRecords.Run(ctx, s.client, keys, args...).Text()
		return err
	})
	if err != nil {
		return 0, err
	}
	if refused := commitErrors[reply]; refused != nil { // To the breaker this is an answer, not a failure.
		return 0, refused
	}
	return strconv.ParseUint(reply, 10, 64)
}

func appendChange(args []any, t *docs.Topic, c *docs.Change) ([]any, error) {
	if len(c.Scores) != len(t.Indexes) {
		return nil, errors.New("a change must have a score for each index of its topic")
	}
	expected := "*"
	if !c.Any {
		expected = strconv.FormatUint(c.Expected, 10)
	}
	args = append(args, c.Key.String(), expected, c.Value)
	for _, n := range c.Scores {
		args = append(args, scoreText(n))
	}
	return args, nil
}

// scoreText returns an instant as a score of Redis.
func scoreText(at int64) string {
	if at == math.MaxInt64 {
		return "+inf"
	}
	return strconv.FormatInt(at, 10)
}

func parseUints(texts []string) (numbers []uint64, err error) {
	for _, text := range texts {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
