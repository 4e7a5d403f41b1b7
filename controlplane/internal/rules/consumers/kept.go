package consumers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// KeptChanges is the number of latest changes in a store. A node that missed more asks again about
// every consumer that it knows.
var KeptChanges = docs.Consumers.Kept

// banned is the index of records with a ban.
const banned = "banned"

// Kept stores records in a store of records. It implements Store.
type Kept struct{ In docs.Records }

// Consumers implements Store.
func (k Kept) Consumers(ctx context.Context, keys []keyhash.Key) ([]Record, State, error) {
	stored, state, err := k.In.Read(ctx, &docs.Consumers, keys)
	records := make([]Record, len(stored))
	for i := 0; i < len(stored) && err == nil; i++ {
		records[i], err = decodeRecord(&stored[i])
	}
	return records, stateOf(&state), err
}

func stateOf(s *docs.State) State {
	return State{Revision: s.Revision, ExceptionsRevision: s.IndexRevision, Special: s.Live}
}

// decodeRecord decodes a stored record; the zero Record if there is none.
func decodeRecord(stored *docs.Record) (r Record, err error) {
	if len(stored.Value) == 0 {
		return Record{}, nil
	}
	if err := json.Unmarshal(stored.Value, &r); err != nil {
		return Record{}, fmt.Errorf("the stored consumer is damaged: %w", err)
	}
	r.Revision = stored.Revision
	return r, nil
}

// WriteConsumers implements Store.
func (k Kept) WriteConsumers(ctx context.Context, c Changes) (uint64, error) {
	commit := docs.Commit{
		Changes: make([]docs.Change, len(c.Writes)), IndexRevision: c.ExceptionsRevision,
		Entry: c.Entry, WithBefore: len(c.Writes) == 1,
	}
	for i, w := range c.Writes {
		special, banned := w.Record.Ends()
		change := docs.Change{Key: w.Key, Expected: w.Expected, Any: w.Any, Scores: []int64{special, banned}}
		if w.Record != nil {
			var err error
			change.Value, err = json.Marshal(w.Record)
			if err != nil {
				return 0, err
			}
		}
		commit.Changes[i] = change
	}
	revision, err := k.In.Commit(ctx, &docs.Consumers, commit)
	if errors.Is(err, errs.NotFound) {
		err = ErrNotFound
	}
	return revision, err
}

// ListConsumers implements Store.
func (k Kept) ListConsumers(ctx context.Context, list List) ([]Listed, string, error) {
	index := ""
	if list.Banned {
		index = banned
	}
	stored, next, err := k.In.Scan(ctx, &docs.Consumers, index, list.Token, list.Limit)
	if err != nil {
		return nil, "", err
	}
	all, err := decodeAll(stored)
	return all, next, err
}

func decodeAll(stored []docs.Record) (all []Listed, err error) {
	for i := range stored {
		r, err := decodeRecord(&stored[i])
		if err != nil {
			return nil, err
		}
		all = append(all, Listed{stored[i].Key, r})
	}
	return all, nil
}

// BannedConsumers implements Store.
func (k Kept) BannedConsumers(ctx context.Context, limit int) ([]Listed, error) {
	stored, err := k.In.Last(ctx, &docs.Consumers, banned, limit)
	if err != nil {
		return nil, err
	}
	return decodeAll(stored)
}

// ConsumerLog implements Store.
func (k Kept) ConsumerLog(ctx context.Context, after uint64) (Log, error) {
	stored, state, err := k.In.Since(ctx, &docs.Consumers, after, KeptChanges)
	l := Log{State: stateOf(&state), Floor: state.Floor, Whole: state.Floor < state.First}
	for i := 0; i < len(stored) && err == nil; i++ {
		c := Change{Revision: stored[i].Revision, Key: stored[i].Key}
		c.Record, err = decodeRecord(&stored[i])
		l.Changes = append(l.Changes, c)
	}
	return l, err
}
