package localstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// droppedAtOnce bounds the records past their first score that one commit drops.
const droppedAtOnce = 500

// listOf returns the name of a list: lists of a topic are buckets named by its tag and the name of
// the list. records: key → big-endian revision, the scores, and the value. changes: big-endian
// revision and key → key. An index: big-endian score and key → key. The state is in the meta
// bucket.
func listOf(t *docs.Topic, part string) []byte { return []byte(t.Tag + " " + part) }

func stateKey(t *docs.Topic) []byte { return listOf(t, "state") }

// recordLists returns the names of all lists of a topic.
func recordLists(t *docs.Topic) [][]byte {
	lists := [][]byte{listOf(t, "records"), listOf(t, "changes")}
	for _, index := range t.Indexes {
		lists = append(lists, listOf(t, index))
	}
	return lists
}

// topicTx is a topic in a transaction.
type topicTx struct {
	*docs.Topic
	tx    *bolt.Tx
	now   uint64
	state docs.State
}

func (s *Store) openTopic(tx *bolt.Tx, t *docs.Topic) *topicTx {
	x := &topicTx{Topic: t, tx: tx, now: uint64(s.nodes.now().UnixMilli())}
	x.state = storedState(tx, t)
	latest, _ := x.list(t.Indexes[0]).Cursor().Last()
	x.state.Live = latest != nil && readNumber(latest[:8]) >= x.now
	return x
}

func (x *topicTx) list(part string) *bolt.Bucket { return x.tx.Bucket(listOf(x.Topic, part)) }

// storedState returns the state of a topic, without Live.
func storedState(tx *bolt.Tx, t *docs.Topic) (state docs.State) {
	stored := tx.Bucket(metaBucket).Get(stateKey(t))
	for _, field := range []*uint64{
		&state.First, &state.Revision, &state.Cleared, &state.Floor, &state.IndexRevision,
	} {
		if len(stored) >= 8 {
			*field, stored = readNumber(stored[:8]), stored[8:]
		}
	}
	state.Logged = int(readNumber(stored))
	return state
}

func (x *topicTx) putState() error {
	var value []byte
	for _, n := range []uint64{
		x.state.First, x.state.Revision, x.state.Cleared, x.state.Floor, x.state.IndexRevision, uint64(x.state.Logged),
	} {
		value = binary.BigEndian.AppendUint64(value, n)
	}
	return x.tx.Bucket(metaBucket).Put(stateKey(x.Topic), value)
}

// getRecord returns a record and its scores. They are valid during the transaction.
func (x *topicTx) getRecord(key []byte) (r docs.Record, scores []byte, err error) {
	stored := x.list("records").Get(key)
	copy(r.Key[:], key)
	switch head := 8 + 8*len(x.Indexes); {
	case stored == nil:
	case len(stored) < head || len(key) != len(r.Key):
		err = fmt.Errorf("the stored record %x of %s is damaged", key, x.Tag)
	default:
		r.Revision, r.Value, scores = readNumber(stored[:8]), stored[head:], stored[8:head]
	}
	return r, scores, err
}

// appendRecord appends a copy of a record to the result for a caller.
func (x *topicTx) appendRecord(all []docs.Record, key []byte) ([]docs.Record, error) {
	r, _, err := x.getRecord(key)
	r.Value = bytes.Clone(r.Value)
	return append(all, r), err
}

// viewTopic calls a function to read a topic, and returns the state at the same moment.
func (s *Store) viewTopic(t *docs.Topic, read func(*topicTx) error) (state docs.State, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		x := s.openTopic(tx, t)
		state = x.state
		return read(x)
	})
	return state, err
}

// Read implements docs.Records.
func (s *Store) Read(
	_ context.Context, t *docs.Topic, keys []keyhash.Key,
) (records []docs.Record, _ docs.State, err error) {
	state, err := s.viewTopic(t, func(x *topicTx) (err error) {
		for i := 0; i < len(keys) && err == nil; i++ {
			records, err = x.appendRecord(records, keys[i][:])
		}
		return err
	})
	return records, state, err
}

// Since implements docs.Records.
func (s *Store) Since(
	_ context.Context, t *docs.Topic, after uint64, limit int,
) (changes []docs.Record, _ docs.State, err error) {
	state, err := s.viewTopic(t, func(x *topicTx) error {
		c := x.list("changes").Cursor()
		for at, key := c.Seek(versionKey(after + 1)); at != nil && len(changes) < limit; at, key = c.Next() {
			revision := readNumber(at[:8])
			all, err := x.appendRecord(changes, key)
			if err != nil {
				return err
			}
			r := &all[len(changes)]
			if r.Revision != 0 && r.Revision != revision {
				continue // The record was deleted at that time, and was added again since.
			}
			r.Revision, changes = revision, all
		}
		return nil
	})
	return changes, state, err
}

// Scan implements docs.Records. The cursor is the key at which the next page begins. It reads all
// records also for an index, because a change moves a record in its index: a short index takes the
// same time as all records.
func (s *Store) Scan(
	_ context.Context, t *docs.Topic, index, cursor string, limit int,
) (records []docs.Record, next string, err error) {
	from, err := hex.DecodeString(cursor)
	if err != nil {
		return nil, "", docs.ErrCursor
	}
	in := slices.Index(t.Indexes, index)
	_, err = s.viewTopic(t, func(x *topicTx) error {
		c := x.list("records").Cursor()
		for key, _ := c.Seek(from); key != nil; key, _ = c.Next() {
			r, scores, err := x.getRecord(key)
			switch {
			case err != nil:
				return err
			case in >= 0 && readNumber(scores[8*in:8*in+8]) == 0:
				continue
			case len(records) == limit:
				next = hex.EncodeToString(key)
				return nil
			}
			r.Value = bytes.Clone(r.Value)
			records = append(records, r)
		}
		return nil
	})
	return records, next, err
}

// Last implements docs.Records. An index is ordered by score and key, so Last reads it from its
// end.
func (s *Store) Last(_ context.Context, t *docs.Topic, index string, limit int) (records []docs.Record, err error) {
	_, err = s.viewTopic(t, func(x *topicTx) (err error) {
		c := x.list(index).Cursor()
		for at, key := c.Last(); at != nil && len(records) < limit && err == nil; at, key = c.Prev() {
			records, err = x.appendRecord(records, key)
		}
		return err
	})
	return records, err
}

// Commit implements docs.Records.
func (s *Store) Commit(ctx context.Context, t *docs.Topic, c docs.Commit) (uint64, error) {
	c.Changes = slices.Clone(c.Changes) // The transaction may outlast the caller, who may then change them.
	// Check the expectations, make room, then change the records.
	done, err := writeChange(ctx, s, func(tx *bolt.Tx) (committed, error) {
		x := s.openTopic(tx, t)
		if c.Cleared != nil && *c.Cleared != x.state.Cleared {
			return committed{}, errs.Conflict
		}
		if err := x.checkExpected(&c); err != nil {
			return committed{}, err
		}
		if err := x.makeRoom(&c); err != nil {
			return committed{}, err
		}
		if !x.hasRoom(&c) {
			return committed{full: true}, x.putState()
		}
		if len(c.Changes) > 0 || c.Clear {
			if err := x.makeChanges(&c); err != nil {
				return committed{}, err
			}
		}
		err := x.putState()
		if err == nil && c.Entry.Action != "" {
			err = s.recordEntry(tx, t.Tag, c.Entry)
		}
		return committed{revision: x.state.Revision}, err
	})
	if err == nil && done.full {
		return 0, docs.ErrFull
	}
	return done.revision, err
}

// committed is the result of a commit. A commit without room is no error of the transaction,
// because the transaction also drops expired records.
type committed struct {
	revision uint64
	full     bool
}

// hasRoom reports whether there is room for the records that a commit adds.
func (x *topicTx) hasRoom(c *docs.Commit) bool {
	added := 0
	for i := range c.Changes {
		if x.list("records").Get(c.Changes[i].Key[:]) == nil {
			added++
		}
	}
	return !x.Whole || added == 0 || x.state.Logged+added <= x.Kept
}

// checkExpected returns an error unless all is as the commit expects, and completes the commit's
// entry.
func (x *topicTx) checkExpected(c *docs.Commit) error {
	for i, change := range c.Changes {
		held, _, err := x.getRecord(change.Key[:])
		switch {
		case err != nil:
			return err
		case len(change.Scores) != len(x.Indexes):
			return errors.New("a change must have a score for each index of its topic")
		case !change.Any && held.Revision != change.Expected:
			return errs.Conflict
		case len(change.Value) == 0 && held.Revision == 0:
			return errs.NotFound
		case i == 0 && c.WithBefore && held.Revision > 0:
			c.Entry.Before = bytes.Clone(held.Value)
		}
	}
	return nil
}

// makeRoom drops the records that a commit clears, and some records past their first score.
func (x *topicTx) makeRoom(c *docs.Commit) error {
	// Clear all lists.
	if c.Clear {
		for _, name := range recordLists(x.Topic) {
			if err := x.tx.DeleteBucket(name); err != nil {
				return err
			}
			if _, err := x.tx.CreateBucket(name); err != nil {
				return err
			}
		}
		x.state.Logged = 0
	}
	// Drop records past their first score.
	var old [][]byte
	ends := x.list(x.Indexes[0]).Cursor()
	for at, key := ends.First(); x.Expires && at != nil && readNumber(at[:8]) <= x.now; at, key = ends.Next() {
		if len(old) == droppedAtOnce {
			break
		}
		old = append(old, bytes.Clone(key))
	}
	for _, key := range old {
		if _, err := x.dropRecord(key); err != nil {
			return err
		}
	}
	return nil
}

// dropRecord removes a record from all lists, and reports whether it had a first score.
func (x *topicTx) dropRecord(key []byte) (scored bool, err error) {
	r, scores, err := x.getRecord(key)
	if err != nil || r.Revision == 0 {
		return false, err
	}
	for i, index := range x.Indexes {
		if at := scores[8*i : 8*i+8]; readNumber(at) > 0 {
			scored = scored || i == 0
			err = errors.Join(err, x.list(index).Delete(slices.Concat(at, key)))
		}
	}
	changed := changeKey(r.Revision, r.Key)
	if x.list("changes").Get(changed) != nil {
		x.state.Logged--
	}
	return scored, errors.Join(err, x.list("changes").Delete(changed), x.list("records").Delete(key))
}

// makeChanges makes the changes of a commit.
func (x *topicTx) makeChanges(c *docs.Commit) error {
	// A revision is at least the time. So after a loss of state the revisions are above all that
	// nodes have seen.
	before := max(x.state.Revision, x.now-1)
	x.state.Revision = before + 1
	if c.Clear {
		x.state.Cleared = before + 1
	}
	touched := false
	for i := range c.Changes {
		if x.Whole {
			x.state.Revision = before + 1 + uint64(i)
		}
		key := bytes.Clone(c.Changes[i].Key[:])
		was, err := x.dropRecord(key)
		if err == nil {
			err = x.putRecord(x.state.Revision, key, &c.Changes[i])
		}
		if err != nil {
			return err
		}
		touched = touched || was || c.Changes[i].Scores[0] > 0
	}
	if x.state.First == 0 {
		x.state.First, x.state.Floor = x.state.Revision, before
	}
	if touched {
		x.state.IndexRevision = max(x.state.IndexRevision, c.IndexRevision) + 1
	}
	return x.trimLog()
}

// putRecord adds a dropped record to all lists, or records that it is deleted.
func (x *topicTx) putRecord(revision uint64, key []byte, c *docs.Change) error {
	x.state.Logged++
	err := x.list("changes").Put(changeKey(revision, c.Key), key)
	if len(c.Value) == 0 {
		return err
	}
	stored := versionKey(revision)
	for i, index := range x.Indexes {
		at := versionKey(uint64(c.Scores[i]))
		stored = append(stored, at...)
		if c.Scores[i] > 0 {
			err = errors.Join(err, x.list(index).Put(slices.Concat(at, key), key))
		}
	}
	return errors.Join(err, x.list("records").Put(key, append(stored, c.Value...)))
}

// trimLog drops the earliest changes if the log has too many.
func (x *topicTx) trimLog() error {
	for ; !x.Whole && x.state.Logged > x.Kept; x.state.Logged-- {
		earliest, _ := x.list("changes").Cursor().First()
		if earliest == nil {
			return fmt.Errorf("the log of %s is damaged: it lacks changes", x.Tag)
		}
		x.state.Floor = readNumber(earliest[:8])
		if err := x.list("changes").Delete(earliest); err != nil {
			return err
		}
	}
	return nil
}

// changeKey returns the key of a change in the log: several changes may have the same revision.
func changeKey(revision uint64, key keyhash.Key) []byte {
	return append(versionKey(revision), key[:]...)
}

// readNumber decodes a number of versionKey; anything else is 0.
func readNumber(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
