package consumers

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// restoredAtOnce bounds the changes that the store gets back in one step.
const restoredAtOnce = 500

// follows reports whether a store, by its changes since held.Revision and including it, has all
// that held has. A store that went back, and forward again before this replica looked, lacks the
// last change that is held.
func (l Log) follows(held Log) bool {
	if !l.Whole && l.Floor >= held.Revision {
		return true // After so many changes the loss cannot be seen.
	}
	for _, c := range held.Changes {
		there := func(other Change) bool { return other.Key == c.Key }
		if c.Revision == held.Revision && !slices.ContainsFunc(l.Changes, there) {
			return false
		}
	}
	return true
}

// missing returns the changes and bans that are held, are not in the store, and were not overtaken
// there. The record of a ban that was not changed lately counts as its change.
func missing(held Log, bans map[keyhash.Key]Record, stored Log) (lost []Change) {
	known := make(map[keyhash.Key]uint64, len(stored.Changes))
	for _, c := range stored.Changes {
		known[c.Key] = c.Revision
	}
	add := func(c Change) {
		dropped := !stored.Whole && c.Revision <= stored.Floor
		if !dropped && known[c.Key] < c.Revision {
			lost = append(lost, c)
		}
	}
	recent := make(map[keyhash.Key]bool, len(held.Changes))
	for _, c := range held.Changes {
		recent[c.Key] = true
		add(c)
	}
	for key, r := range bans {
		if !recent[key] {
			add(Change{Revision: r.Revision, Key: key, Record: r})
		}
	}
	return lost
}

// regain gives a store that went back the changes that this replica holds. Afterwards nodes learn
// that they may have missed changes.
func (s *Service) regain(ctx context.Context, held Log, stored uint64) error {
	log, err := s.store.ConsumerLog(ctx, 0)
	if err != nil {
		return err
	}
	s.mu.Lock()
	lost := missing(held, s.bans, log)
	s.mu.Unlock()
	given, bans := 0, 0
	for chunk := range slices.Chunk(lost, restoredAtOnce) {
		n, banned, err := s.giveBack(ctx, chunk)
		if errors.Is(err, errs.Conflict) || errors.Is(err, ErrNotFound) {
			return nil // Another replica is faster; the next Refresh finds what remains.
		}
		if err != nil {
			return err
		}
		given, bans = given+n, bans+banned
	}
	log, err = s.store.ConsumerLog(ctx, 0)
	if err != nil {
		return err
	}
	if err := s.take(ctx, log, 0, true); err != nil {
		return err
	}
	s.mu.Lock()
	s.since = log.Revision
	s.mu.Unlock()
	s.logger.Warn("the store had lost changes of consumers; "+
		"it has those back that this replica knew: all, or the latest of all kinds and the bans",
		"consumers", given, "bans", bans, "all", held.Whole, "known", held.Revision, "stored", stored)
	s.lost()
	return nil
}

// giveBack stores changes that the store has lost, and returns the number of records and of bans.
func (s *Service) giveBack(ctx context.Context, changes []Change) (given, bans int, err error) {
	keys := make([]keyhash.Key, len(changes))
	for i := range changes {
		keys[i] = changes[i].Key
	}
	records, _, err := s.store.Consumers(ctx, keys)
	if err != nil {
		return 0, 0, err
	}
	var writes []Write
	for i, c := range changes {
		has := records[i].Revision
		w := Write{Key: c.Key, Expected: has}
		if c.Record.Revision > 0 {
			w.Record = &c.Record
		}
		if has >= c.Revision || w.Record == nil && has == 0 {
			continue
		}
		if !c.Record.Banned.Ends(s.now()) {
			bans++
		}
		writes = append(writes, w)
	}
	if len(writes) == 0 {
		return 0, 0, nil
	}
	_, err = s.store.WriteConsumers(ctx,
		Changes{Writes: writes, ExceptionsRevision: s.ExceptionsRevision(), Entry: audit.Entry{
			Action: "consumers.restore", Resource: "consumers", Reason: "the store had lost them",
			After: audit.Value(map[string]int{"consumers": len(writes), "bans": bans})}})
	return len(writes), bans, err
}
