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
	// tries is the number of failed commits in a row after which a change of one record gives up.
	tries = 16
	// longestWait is the longest pause between two tries.
	longestWait = 5 * time.Millisecond
)

// errBusy is returned to the node, which reports again.
var errBusy = errors.New("cannot change penalties: other replicas change the same penalties all the time")

// Kept stores records in a store of records, at most docs.Penalties.Kept. A further new caller is
// known only to its node.
type Kept struct {
	In docs.Records
	// Held, unless nil, returns the records of keys that a replica has, and the head up to which it
	// follows the store; ok is false before it does.
	Held func(keys []keyhash.Key) (map[keyhash.Key]Record, docs.Head, bool)
	// Slot, unless nil, has room for one change: changes that met other replicas' changes take
	// turns in this replica.
	Slot chan struct{}
	// Random returns the length of a pause, from 0 to below 1; nil means a real random source.
	Random func() float64
}

// Since returns at most limit records that changed after a revision, the earliest first, and the
// head at the same moment. If there are more, the head's revision is the revision of the last
// record.
func (k Kept) Since(ctx context.Context, after uint64, limit int) (list []Record, head docs.Head, more bool, _ error) {
	stored, state, err := k.In.Since(ctx, &docs.Penalties, after, limit)
	if err != nil {
		return nil, head, false, err
	}
	for i := range stored {
		r, err := decodeRecord(&stored[i])
		if err != nil {
			return nil, head, false, err
		}
		if r.Revision > 0 { // Otherwise only this record was lost.
			list = append(list, r)
		}
	}
	head, more = state.Head, len(stored) == limit
	if more {
		head.Revision = stored[limit-1].Revision
	}
	return list, head, more, nil
}

// decodeRecord decodes a stored record; the zero Record if there is none.
func decodeRecord(stored *docs.Record) (r Record, err error) {
	if len(stored.Value) == 0 {
		return Record{}, nil
	}
	if err := json.Unmarshal(stored.Value, &r); err != nil {
		return Record{}, fmt.Errorf("the stored penalty of %s is damaged: %w", stored.Key, err)
	}
	r.Key, r.Revision = stored.Key, stored.Revision
	return r, nil
}

// Offer stores the records that Record.Takes accepts, as far as there is room.
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

// Pardon pardons callers, and stores the audit entry if one of them had a penalty. It returns the
// number of callers that had a penalty.
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

// Clear pardons all callers.
func (k Kept) Clear(ctx context.Context, entry audit.Entry) error {
	_, err := k.In.Commit(ctx, &docs.Penalties, docs.Commit{Clear: true, Entry: entry})
	return err
}

// Note stores an audit entry.
func (k Kept) Note(ctx context.Context, entry audit.Entry) error {
	_, err := k.In.Commit(ctx, &docs.Penalties, docs.Commit{Entry: entry})
	return err
}

// edit is a change of one record.
type edit struct {
	key keyhash.Key
	// at is the revision up to which the edit's author knows the caller.
	at uint64
	// wins is true if the edit holds whatever other replicas change at the same moment.
	wins bool
	// next returns the record that replaces held, and false if held stays. cleared is the revision
	// of the last pardon of all callers.
	next func(held *Record, cleared uint64) (Record, bool)
}

// basis is the state on which edits are made.
type basis struct {
	records map[keyhash.Key]Record
	cleared uint64
	// read is true for the store's state, false for the state of the replica.
	read bool
	// room is the number of records that may be added.
	room int
}

// commit makes edits on the records that the replica has, in one call of the store. If an edit's
// author knows more than the replica, commit first reads the records. If the replica's records turn
// out to be old, it reads them and tries again; then it takes turns with other such changes of the
// replica.
//
// After a conflict the next try has half of the edits. Each conflict is then a change of one of
// these records by another replica, so some replica makes progress. A single edit is given up only
// after tries conflicts in a row, or if there is no room though a read showed some. An edit that
// wins only conflicts with a pardon of all callers. Edits that were made stay made.
func (k Kept) commit(ctx context.Context, edits []edit, entry audit.Entry) (done Outcome, err error) {
	// Start with the replica's own records.
	on, held := k.heldBasis(edits)
	entered := false
	for size, late := len(edits), 0; len(edits) > 0; held = false {
		some := edits[:min(size, len(edits))]
		// From the second try on take turns, and read the records.
		if !held && !entered {
			leave, err := k.enterSlot(ctx)
			if err != nil {
				return done, err
			}
			defer leave()
			entered = true
		}
		if !held {
			on, err = k.readBasis(ctx, some)
			if err != nil {
				return done, err
			}
		}
		// Make the edits.
		out, err := k.tryEdits(ctx, &on, some, entry)
		switch {
		case err == nil:
			done.Taken, done.Full = done.Taken+out.Taken, done.Full+out.Full
			if out.Taken > 0 {
				entry = audit.Entry{} // One entry is enough.
			}
			edits, size, late = edits[len(some):], 2*size, 0
			continue
		case !errors.Is(err, errs.Conflict) && !errors.Is(err, docs.ErrFull):
			return done, err
		case held:
			continue // The replica's records were old.
		case len(some) == 1:
			late++
		}
		// Make the next try smaller, after a pause.
		if late == tries {
			return done, errBusy
		}
		size = max(len(some)/2, 1)
		if err := k.waitRandom(ctx); err != nil {
			return done, err
		}
	}
	return done, nil
}

// tryEdits makes edits on a basis, all of them or none.
func (k Kept) tryEdits(ctx context.Context, on *basis, edits []edit, entry audit.Entry) (Outcome, error) {
	c, done, err := on.commitOf(edits)
	if err != nil || len(c.Changes) == 0 {
		return done, err
	}
	c.Entry = entry
	_, err = k.In.Commit(ctx, &docs.Penalties, c)
	return done, err
}

// enterSlot waits for other changes of this replica that met conflicts. Call leave at the end of
// this change.
func (k Kept) enterSlot(ctx context.Context) (leave func(), err error) {
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

// waitRandom waits for a random time, so that replicas do not try at the same moment again.
func (k Kept) waitRandom(ctx context.Context) error {
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

// heldBasis returns the replica's records as a basis; ok is false if the records must be read.
func (k Kept) heldBasis(edits []edit) (basis, bool) {
	if k.Held == nil {
		return basis{}, false
	}
	records, head, loaded := k.Held(keysOf(edits))
	for i := range edits {
		loaded = loaded && edits[i].at <= head.Revision
	}
	// The store reports if there is no room.
	return basis{records: records, cleared: head.Cleared, room: len(edits)}, loaded
}

// readBasis reads the basis from the store.
func (k Kept) readBasis(ctx context.Context, edits []edit) (on basis, err error) {
	stored, state, err := k.In.Read(ctx, &docs.Penalties, keysOf(edits))
	on = basis{map[keyhash.Key]Record{}, state.Cleared, true, docs.Penalties.Kept - state.Logged}
	for i := 0; i < len(stored) && err == nil; i++ {
		on.records[stored[i].Key], err = decodeRecord(&stored[i])
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

// commitOf returns the commit of edits, which are applied in their order.
func (on *basis) commitOf(edits []edit) (c docs.Commit, done Outcome, err error) {
	c.Cleared = &on.cleared
	at := map[keyhash.Key]int{}
	for _, e := range edits {
		// Apply the edit. A new record needs room.
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
		// Keep the record here, for further edits of the same caller.
		next.Revision = was.Revision
		on.records[e.key] = next
		// Write the change. A second edit of a record replaces the first.
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
