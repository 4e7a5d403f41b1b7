package penalties

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/docs"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// tries is how often a change is made anew because another replica was faster.
const tries = 8

// errBusy: the node reports again.
var errBusy = errors.New("other replicas change the same penalties all the time")

// Kept are the records in a store of records, at most docs.Penalties.Kept. A new caller beyond that
// is known to its node alone.
type Kept struct {
	In docs.Records
	// Held, unless nil, returns the records of keys that a replica holds, and how far it follows
	// the store; false before it does.
	Held func(keys []keyhash.Key) (map[keyhash.Key]Record, docs.Head, bool)
}

// Since returns at most limit records that changed after a revision, the earliest first, and the
// head at the same moment. If there are more, its revision is that of the last record.
func (k Kept) Since(ctx context.Context, after uint64, limit int) (list []Record, head docs.Head, more bool, _ error) {
	stored, state, err := k.In.Since(ctx, &docs.Penalties, after, limit)
	if err != nil {
		return nil, head, false, err
	}
	for i := range stored {
		r, err := decode(&stored[i])
		if err != nil {
			return nil, head, false, err
		}
		if r.Revision > 0 { // Else the record was lost alone.
			list = append(list, r)
		}
	}
	head, more = state.Head, len(stored) == limit
	if more {
		head.Revision = stored[limit-1].Revision
	}
	return list, head, more, nil
}

// decode reads a stored record, the zero one if there is none.
func decode(stored *docs.Record) (r Record, err error) {
	if len(stored.Value) == 0 {
		return Record{}, nil
	}
	if err := json.Unmarshal(stored.Value, &r); err != nil {
		return Record{}, fmt.Errorf("the stored penalty of %s is damaged: %w", stored.Key, err)
	}
	r.Key, r.Revision = stored.Key, stored.Revision
	return r, nil
}

// Offer writes the records that Record.Takes says, as far as there is room.
func (k Kept) Offer(ctx context.Context, offered []Known) (Outcome, error) {
	edits := make([]edit, len(offered))
	for i := range offered {
		o := &offered[i]
		edits[i] = edit{o.Key, o.At, func(held *Record, cleared uint64) (Record, bool) {
			return o.Record, held.Takes(o, cleared)
		}}
	}
	return k.commit(ctx, edits, audit.Entry{})
}

// Pardon pardons callers and keeps the entry if one of them had a penalty. It returns how many had.
func (k Kept) Pardon(ctx context.Context, keys []keyhash.Key, entry audit.Entry) (int, error) {
	edits := make([]edit, len(keys))
	for i, key := range keys {
		edits[i] = edit{key, 0, func(held *Record, _ uint64) (Record, bool) {
			return held.Pardoned(), held.Level > 0
		}}
	}
	done, err := k.commit(ctx, edits, entry)
	return done.Taken, err
}

// Clear pardons all.
func (k Kept) Clear(ctx context.Context, entry audit.Entry) error {
	_, err := k.In.Commit(ctx, &docs.Penalties, docs.Commit{Clear: true, Entry: entry})
	return err
}

// Note keeps an entry.
func (k Kept) Note(ctx context.Context, entry audit.Entry) error {
	_, err := k.In.Commit(ctx, &docs.Penalties, docs.Commit{Entry: entry})
	return err
}

// edit is what becomes of one record.
type edit struct {
	key keyhash.Key
	// at is the revision up to which its author knows the caller.
	at uint64
	// next returns the record that takes the place of another, false if none does. All were
	// pardoned at the revision cleared.
	next func(held *Record, cleared uint64) (Record, bool)
}

// basis is what edits are made on top of.
type basis struct {
	records map[keyhash.Key]Record
	cleared uint64
	// room is how many records may be added.
	room int
}

// commit makes edits on top of the records that the replica holds, which takes one call of the
// store. It reads the records first where an author knows more than the replica, and again where
// another replica was faster.
func (k Kept) commit(ctx context.Context, edits []edit, entry audit.Entry) (done Outcome, err error) {
	on, held := k.held(edits)
	for range tries {
		if !held {
			on, err = k.read(ctx, edits)
			if err != nil {
				return Outcome{}, err
			}
		}
		var c docs.Commit
		c, done, err = on.change(edits)
		if err != nil || len(c.Changes) == 0 {
			return done, err
		}
		c.Entry = entry
		_, err = k.In.Commit(ctx, &docs.Penalties, c)
		if errors.Is(err, docs.ErrFull) {
			_, err = k.In.Commit(ctx, &docs.Penalties, docs.Commit{}) // It drops some that are forgotten.
			if err == nil {
				err = errs.Conflict
			}
		}
		if err == nil || !errors.Is(err, errs.Conflict) {
			return done, err
		}
		held = false
	}
	return Outcome{}, errBusy
}

// held returns the basis that the replica holds; false if it must be read.
func (k Kept) held(edits []edit) (basis, bool) {
	if k.Held == nil {
		return basis{}, false
	}
	records, head, loaded := k.Held(keysOf(edits))
	for i := range edits {
		loaded = loaded && edits[i].at <= head.Revision
	}
	// The store says when there is no room.
	return basis{records, head.Cleared, len(edits)}, loaded
}

// read reads the basis from the store.
func (k Kept) read(ctx context.Context, edits []edit) (on basis, err error) {
	stored, state, err := k.In.Read(ctx, &docs.Penalties, keysOf(edits))
	on = basis{map[keyhash.Key]Record{}, state.Cleared, docs.Penalties.Kept - state.Logged}
	for i := 0; i < len(stored) && err == nil; i++ {
		on.records[stored[i].Key], err = decode(&stored[i])
	}
	return on, err
}

func keysOf(edits []edit) []keyhash.Key {
	keys := make([]keyhash.Key, len(edits))
	for i := range edits {
		keys[i] = edits[i].key
	}
	return keys
}

// change returns the commit of edits, which are made one after the other.
func (on *basis) change(edits []edit) (c docs.Commit, done Outcome, err error) {
	c.Cleared = &on.cleared
	at := map[keyhash.Key]int{}
	for _, e := range edits {
		was := on.records[e.key]
		next, changed := e.next(&was, on.cleared)
		i, again := at[e.key]
		added := was.Revision == 0 && !again
		switch {
		case !changed:
			continue
		case added && on.room <= 0:
			done.Full++
			continue
		case added:
			on.room--
		}
		next.Revision = was.Revision
		on.records[e.key] = next
		change := docs.Change{Key: e.key, Expected: was.Revision, Scores: []int64{max(next.Forgotten, 1)}}
		change.Value, err = json.Marshal(next)
		if err != nil {
			return c, done, err
		}
		if again {
			c.Changes[i] = change
		} else {
			at[e.key], c.Changes = len(c.Changes), append(c.Changes, change)
		}
		done.Taken++
	}
	return c, done, nil
}
