package penalties

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

const (
	// tries is how often in a row a change of one record may come too late.
	tries = 16
	// longestWait is between two tries.
	longestWait = 5 * time.Millisecond
)

// errBusy: the node reports again.
var errBusy = errors.New("other replicas change the same penalties all the time")

// Kept are the records in a store of records, at most docs.Penalties.Kept. A new caller beyond that
// is known to its node alone.
type Kept struct {
	In docs.Records
	// Held, unless nil, returns the records of keys that a replica holds, and how far it follows
	// the store; false before it does.
	Held func(keys []keyhash.Key) (map[keyhash.Key]Record, docs.Head, bool)
	// Slot, unless nil, has room for one: changes that met others take turns in this replica.
	Slot chan struct{}
	// Random decides how long a try waits, from 0 to below 1; nil is a random one.
	Random func() float64
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
		edits[i] = edit{o.Key, o.At, false, func(held *Record, cleared uint64) (Record, bool) {
			return o.Record, held.Takes(o, cleared)
		}}
	}
	return k.commit(ctx, edits, audit.Entry{})
}

// Pardon pardons callers and keeps the entry if one of them had a penalty. It returns how many had.
func (k Kept) Pardon(ctx context.Context, keys []keyhash.Key, entry audit.Entry) (int, error) {
	edits := make([]edit, len(keys))
	for i, key := range keys {
		edits[i] = edit{key, 0, true, func(held *Record, _ uint64) (Record, bool) {
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
	// wins: it stands over whatever another replica does at the same moment.
	wins bool
	// next returns the record that takes the place of another, false if none does. All were
	// pardoned at the revision cleared.
	next func(held *Record, cleared uint64) (Record, bool)
}

// basis is what edits are made on top of.
type basis struct {
	records map[keyhash.Key]Record
	cleared uint64
	// read: it is the store's, else what the replica holds.
	read bool
	// room is how many records may be added.
	room int
}

// commit makes edits on top of the records that the replica holds, which takes one call of the
// store. It reads the records first where an author knows more than the replica, and again where
// the replica holds old ones: then it waits for the replica's other changes that do so, too.
//
// A try that still comes too late makes the next one half as large. Each conflict is then a change
// of one of these records by another replica, so of all replicas one gets on. One edit alone is
// given up only if tries commits in a row come too late, or find no room that a read has shown. For
// an edit that wins only a pardon of all comes too late. What is done stays.
func (k Kept) commit(ctx context.Context, edits []edit, entry audit.Entry) (done Outcome, err error) {
	on, held := k.held(edits)
	entered := false
	for size, late := len(edits), 0; len(edits) > 0; held = false {
		some := edits[:min(size, len(edits))]
		if !held && !entered {
			leave, err := k.enter(ctx)
			if err != nil {
				return done, err
			}
			defer leave()
			entered = true
		}
		if !held {
			on, err = k.read(ctx, some)
			if err != nil {
				return done, err
			}
		}
		out, err := k.try(ctx, &on, some, entry)
		switch {
		case err == nil:
			done.Taken, done.Full = done.Taken+out.Taken, done.Full+out.Full
			if out.Taken > 0 {
				entry = audit.Entry{} // One is enough.
			}
			edits, size, late = edits[len(some):], 2*size, 0
			continue
		case !errors.Is(err, errs.Conflict) && !errors.Is(err, docs.ErrFull):
			return done, err
		case held:
			continue // What the replica holds was old.
		case len(some) == 1:
			late++
		}
		if late == tries {
			return done, errBusy
		}
		size = max(len(some)/2, 1)
		if err := k.wait(ctx); err != nil {
			return done, err
		}
	}
	return done, nil
}

// try makes edits on top of a basis, all or none.
func (k Kept) try(ctx context.Context, on *basis, edits []edit, entry audit.Entry) (Outcome, error) {
	c, done, err := on.change(edits)
	if err != nil || len(c.Changes) == 0 {
		return done, err
	}
	c.Entry = entry
	_, err = k.In.Commit(ctx, &docs.Penalties, c)
	return done, err
}

// enter waits for the replica's changes that met others, and returns the end of this one.
func (k Kept) enter(ctx context.Context) (leave func(), err error) {
	if k.Slot == nil {
		return func() {}, nil
	}
	select {
	case k.Slot <- struct{}{}:
		return func() { <-k.Slot }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errBusy, context.Cause(ctx))
	}
}

// wait waits for a moment, another one than other replicas do.
func (k Kept) wait(ctx context.Context) error {
	random := k.Random
	if random == nil {
		random = rand.Float64
	}
	timer := time.NewTimer(time.Duration(random() * float64(longestWait)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errBusy, context.Cause(ctx))
	}
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
	return basis{records: records, cleared: head.Cleared, room: len(edits)}, loaded
}

// read reads the basis from the store.
func (k Kept) read(ctx context.Context, edits []edit) (on basis, err error) {
	stored, state, err := k.In.Read(ctx, &docs.Penalties, keysOf(edits))
	on = basis{map[keyhash.Key]Record{}, state.Cleared, true, docs.Penalties.Kept - state.Logged}
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
		change := docs.Change{Key: e.key, Expected: was.Revision, Any: e.wins && on.read,
			Scores: []int64{max(next.Forgotten, 1)}}
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
