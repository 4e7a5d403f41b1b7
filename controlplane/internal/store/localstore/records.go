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

// Lists of a topic are buckets of their own, by its tag and these words. records: key → big-endian
// revision, the scores, and the value. changes: big-endian revision and key → key. An index:
// big-endian score and key → key. The state is in the meta bucket.
func listOf(t *docs.Topic, part string) []byte { return []byte(t.Tag + " " + part) }

func stateKey(t *docs.Topic) []byte { return listOf(t, "state") }

// recordLists are the names of all lists of a topic.
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

func (s *Store) topic(tx *bolt.Tx, t *docs.Topic) *topicTx {
	x := &topicTx{Topic: t, tx: tx, now: uint64(s.nodes.now().UnixMilli())}
	x.state = storedState(tx, t)
	latest, _ := x.list(t.Indexes[0]).Cursor().Last()
	x.state.Live = latest != nil && number(latest[:8]) >= x.now
	return x
}

func (x *topicTx) list(part string) *bolt.Bucket { return x.tx.Bucket(listOf(x.Topic, part)) }

// storedState is the state of a topic but for Live.
func storedState(tx *bolt.Tx, t *docs.Topic) (state docs.State) {
	stored := tx.Bucket(metaBucket).Get(stateKey(t))
	for _, field := range []*uint64{
		&state.First, &state.Revision, &state.Cleared, &state.Floor, &state.IndexRevision,
	} {
		if len(stored) >= 8 {
			*field, stored = number(stored[:8]), stored[8:]
		}
	}
	state.Logged = int(number(stored))
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

// get returns a record and its scores. They are valid during the transaction.
func (x *topicTx) get(key []byte) (r docs.Record, scores []byte, err error) {
	stored := x.list("records").Get(key)
	copy(r.Key[:], key)
	switch head := 8 + 8*len(x.Indexes); {
	case stored == nil:
	case len(stored) < head || len(key) != len(r.Key):
		err = fmt.Errorf("the stored record %x of %s is damaged", key, x.Tag)
	default:
		r.Revision, r.Value, scores = number(stored[:8]), stored[head:], stored[8:head]
	}
	return r, scores, err
}

// read appends a record that a caller gets.
func (x *topicTx) read(all []docs.Record, key []byte) ([]docs.Record, error) {
	r, _, err := x.get(key)
	r.Value = bytes.Clone(r.Value)
	return append(all, r), err
}

// view reads a topic.
func (s *Store) view(t *docs.Topic, read func(*topicTx) error) (state docs.State, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		x := s.topic(tx, t)
		state = x.state
		return read(x)
	})
	return state, err
}

// Read implements docs.Records.
func (s *Store) Read(
	_ context.Context, t *docs.Topic, keys []keyhash.Key,
) (records []docs.Record, _ docs.State, err error) {
	state, err := s.view(t, func(x *topicTx) (err error) {
		for i := 0; i < len(keys) && err == nil; i++ {
			records, err = x.read(records, keys[i][:])
		}
		return err
	})
	return records, state, err
}

// Since implements docs.Records.
func (s *Store) Since(
	_ context.Context, t *docs.Topic, after uint64, limit int,
) (changes []docs.Record, _ docs.State, err error) {
	state, err := s.view(t, func(x *topicTx) error {
		c := x.list("changes").Cursor()
		for at, key := c.Seek(versionKey(after + 1)); at != nil && len(changes) < limit; at, key = c.Next() {
			revision := number(at[:8])
			all, err := x.read(changes, key)
			if err != nil {
				return err
			}
			r := &all[len(changes)]
			if r.Revision != 0 && r.Revision != revision {
				continue // It was deleted then, and is there again.
			}
			r.Revision, changes = revision, all
		}
		return nil
	})
	return changes, state, err
}

// Scan implements docs.Records: the cursor is the key at which the next page begins. It walks all
// records also for an index, in which a change moves a record: a short list takes as long as all.
func (s *Store) Scan(
	_ context.Context, t *docs.Topic, index, cursor string, limit int,
) (records []docs.Record, next string, err error) {
	from, err := hex.DecodeString(cursor)
	if err != nil {
		return nil, "", docs.ErrCursor
	}
	in := slices.Index(t.Indexes, index)
	_, err = s.view(t, func(x *topicTx) error {
		c := x.list("records").Cursor()
		for key, _ := c.Seek(from); key != nil; key, _ = c.Next() {
			r, scores, err := x.get(key)
			switch {
			case err != nil:
				return err
			case in >= 0 && number(scores[8*in:8*in+8]) == 0:
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

// Last implements docs.Records.
func (s *Store) Last(_ context.Context, t *docs.Topic, index string, limit int) (records []docs.Record, err error) {
	_, err = s.view(t, func(x *topicTx) (err error) {
		c := x.list(index).Cursor()
		for at, key := c.Last(); at != nil && len(records) < limit && err == nil; at, key = c.Prev() {
			records, err = x.read(records, key)
		}
		return err
	})
	return records, err
}

// Commit implements docs.Records.
func (s *Store) Commit(ctx context.Context, t *docs.Topic, c docs.Commit) (uint64, error) {
	c.Changes = slices.Clone(c.Changes) // The transaction may outlast the caller, who has them.
	done, err := write(ctx, s, func(tx *bolt.Tx) (committed, error) {
		x := s.topic(tx, t)
		if c.Cleared != nil && *c.Cleared != x.state.Cleared {
			return committed{}, errs.Conflict
		}
		if err := x.check(&c); err != nil {
			return committed{}, err
		}
		if err := x.makeRoom(&c); err != nil {
			return committed{}, err
		}
		if !x.fits(&c) {
			return committed{full: true}, x.putState()
		}
		if len(c.Changes) > 0 || c.Clear {
			if err := x.change(&c); err != nil {
				return committed{}, err
			}
		}
		err := x.putState()
		if err == nil && c.Entry.Action != "" {
			err = s.record(tx, t.Tag, c.Entry)
		}
		return committed{revision: x.state.Revision}, err
	})
	if err == nil && done.full {
		return 0, docs.ErrFull
	}
	return done.revision, err
}

// committed is what became of a commit. One for which there is no room is no error of the
// transaction, which drops what has expired.
type committed struct {
	revision uint64
	full     bool
}

// fits reports whether there is room for the records that a commit adds.
func (x *topicTx) fits(c *docs.Commit) bool {
	added := 0
	for i := range c.Changes {
		if x.list("records").Get(c.Changes[i].Key[:]) == nil {
			added++
		}
	}
	return !x.Whole || added == 0 || x.state.Logged+added <= x.Kept
}

// check reports whether all is as a commit expects, and completes its entry.
func (x *topicTx) check(c *docs.Commit) error {
	for i, change := range c.Changes {
		held, _, err := x.get(change.Key[:])
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

// makeRoom drops records that a commit clears or that are past their first score.
func (x *topicTx) makeRoom(c *docs.Commit) error {
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
	var old [][]byte
	ends := x.list(x.Indexes[0]).Cursor()
	for at, key := ends.First(); x.Expires && at != nil && number(at[:8]) <= x.now; at, key = ends.Next() {
		if len(old) == droppedAtOnce {
			break
		}
		old = append(old, bytes.Clone(key))
	}
	for _, key := range old {
		if _, err := x.drop(key); err != nil {
			return err
		}
	}
	return nil
}

// drop takes a record off all lists, and reports whether it had a first score.
func (x *topicTx) drop(key []byte) (scored bool, err error) {
	r, scores, err := x.get(key)
	if err != nil || r.Revision == 0 {
		return false, err
	}
	for i, index := range x.Indexes {
		if at := scores[8*i : 8*i+8]; number(at) > 0 {
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

// change makes the changes of a commit.
func (x *topicTx) change(c *docs.Commit) error {
	// At least the time: a store that has lost its state goes on above what nodes have seen.
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
		was, err := x.drop(key)
		if err == nil {
			err = x.put(x.state.Revision, key, &c.Changes[i])
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
	return x.trim()
}

// put puts a record that was dropped on all lists, or notes that it is deleted.
func (x *topicTx) put(revision uint64, key []byte, c *docs.Change) error {
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

// trim drops the earliest of too many changes.
func (x *topicTx) trim() error {
	for ; !x.Whole && x.state.Logged > x.Kept; x.state.Logged-- {
		earliest, _ := x.list("changes").Cursor().First()
		if earliest == nil {
			return fmt.Errorf("the log of %s is damaged: it lacks changes", x.Tag)
		}
		x.state.Floor = number(earliest[:8])
		if err := x.list("changes").Delete(earliest); err != nil {
			return err
		}
	}
	return nil
}

// changeKey is by which a change is kept: several may have one revision.
func changeKey(revision uint64, key keyhash.Key) []byte {
	return append(versionKey(revision), key[:]...)
}

// number reads what versionKey wrote; anything else is 0.
func number(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
