package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// examineEvery is how often a store is examined that says that it has lost nothing.
const examineEvery = time.Second

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
//
// Gone are consumers of whom nothing is known any more, with the revisions of the changes that made
// it so, where the log lists these no more.
func missing(held Log, bans map[keyhash.Key]Record, gone map[keyhash.Key]uint64, stored Log) (lost []Change) {
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
	for key, revision := range gone {
		if !recent[key] {
			add(Change{Revision: revision, Key: key})
		}
	}
	return lost
}

// examine looks, now and then, whether the store has all parts of what this replica holds: one that
// evicts, or a hand that deletes, can take one and leave the others. Then the store gets back what
// this replica holds.
func (s *Service) examine(ctx context.Context, held Log) error {
	now := s.now()
	s.mu.Lock()
	due := now.Sub(s.examined) >= examineEvery
	if due {
		s.examined = now
	}
	var known []keyhash.Key
	banned := false
	for key, r := range s.bans {
		if !r.Banned.Ends(now) {
			banned = true
			known = append(known, key)
			break
		}
	}
	s.mu.Unlock()
	if !due || held.Revision == 0 { // There is nothing to lose before the first change.
		return nil
	}
	for _, c := range slices.Backward(held.Changes) {
		if c.Record.Revision > 0 {
			known = append(known, c.Key)
			break
		}
	}
	whole, err := s.whole(ctx, held, known, banned)
	if err != nil || whole {
		return err
	}
	return s.regain(ctx, held, true)
}

// whole reports whether the store, at the revision that is held, has the records that are known,
// their changes, and with banned a ban in each list.
func (s *Service) whole(ctx context.Context, held Log, known []keyhash.Key, banned bool) (bool, error) {
	log, err := s.store.ConsumerLog(ctx, max(held.Revision, 1)-1)
	if err != nil || log.Revision != held.Revision {
		return true, err
	}
	if !log.follows(held) || banned && !log.Special {
		return false, nil
	}
	if banned {
		list, err := s.store.BannedConsumers(ctx, 1)
		if err != nil || len(list) == 0 {
			return false, err
		}
	}
	if len(known) == 0 {
		return true, nil
	}
	records, state, err := s.store.Consumers(ctx, known)
	if err != nil || state.Revision != held.Revision {
		return true, err
	}
	return !slices.ContainsFunc(records, func(r Record) bool { return r.Revision == 0 }), nil
}

// regain gives a store that went back the changes that this replica holds, all of them if it has
// lost a part.
func (s *Service) regain(ctx context.Context, held Log, part bool) error {
	log, err := s.store.ConsumerLog(ctx, 0)
	if err != nil {
		return err
	}
	found := &loss{whole: held.Whole && s.bansWhole, known: held.Revision, stored: log.Revision, part: part}
	if part {
		log = Log{}
	}
	s.mu.Lock()
	lost := missing(held, s.bans, s.gone, log)
	s.mu.Unlock()
	s.owed = append(s.owed, lost...)
	s.loss = found
	return s.repay(ctx)
}

// loss is what a store is found to have lost, and what it has back of it.
type loss struct {
	// whole: this replica knew all changes.
	whole         bool
	known, stored uint64
	given, bans   int
	// part: it still says that it has them, and has to list them anew.
	part bool
	// last is the latest change that the store was seen to have since; zero for none.
	last Change
}

// errWentBack is the failure to give a store back what it had lost: it has lost more meanwhile.
var errWentBack = errors.New("the store went back once more")

// repay gives the store what it owes: what this replica has acknowledged or read, and the store
// lacks. What has no time now stays owed. Afterwards nodes learn that they may have missed changes.
// What this replica holds is compared anew with a store that went back once more meanwhile.
func (s *Service) repay(ctx context.Context) error {
	if s.loss == nil {
		s.loss = &loss{whole: true}
	}
	err := s.giveAll(ctx)
	if !errors.Is(err, errWentBack) {
		return err
	}
	s.mu.Lock()
	held := s.log
	s.mu.Unlock()
	return s.regain(ctx, held, false)
}

// giveAll is repay for a store that does not go back meanwhile.
func (s *Service) giveAll(ctx context.Context) error {
	if err := s.forgive(ctx); err != nil {
		return err
	}
	for len(s.owed) > 0 {
		chunk := s.owed[:min(len(s.owed), restoredAtOnce)]
		err := s.giveBack(ctx, chunk)
		if errors.Is(err, errs.Conflict) || errors.Is(err, ErrNotFound) {
			continue // Another writer was faster with one of them.
		}
		if err != nil {
			return err
		}
		s.keepGone(chunk)
		s.owed = s.owed[len(chunk):]
	}
	if s.loss.known == 0 && s.loss.given == 0 {
		s.owed, s.loss = nil, nil
		return nil // The store had everything.
	}
	log, err := s.logAfterLoss(ctx)
	if err != nil {
		return err
	}
	s.keepGone(s.log.Changes)
	if err := s.take(ctx, log, 0, true); err != nil {
		return err
	}
	s.mu.Lock()
	s.since = log.Revision
	s.mu.Unlock()
	s.sayLoss()
	return nil
}

// sayLoss says what the store had lost and has back, and that nodes may have missed changes.
func (s *Service) sayLoss() {
	lost := *s.loss
	s.owed, s.loss = nil, nil
	said := "the store had lost changes of consumers; it has all of them back"
	if !lost.whole {
		said = fmt.Sprintf("the store had lost changes of consumers; it has those back that this replica knew: "+
			"the latest %d of all kinds, and at most %d bans; import the rest again",
			KeptChanges, maxBans)
	}
	s.logger.Warn(said, "consumers", lost.given, "bans", lost.bans, "all", lost.whole,
		"known", lost.known, "stored", lost.stored)
	s.lost()
}

// logAfterLoss reads the log of a store that is getting back what it had lost.
func (s *Service) logAfterLoss(ctx context.Context) (Log, error) {
	log, err := s.store.ConsumerLog(ctx, 0)
	if err != nil {
		return Log{}, err
	}
	var seen Log
	seen.Revision, seen.Changes = s.loss.last.Revision, []Change{s.loss.last}
	if seen.Revision > 0 && (log.Revision < seen.Revision || !log.follows(seen)) {
		return Log{}, errWentBack
	}
	for _, c := range log.Changes {
		if c.Revision > s.loss.last.Revision {
			s.loss.last = c
		}
	}
	return log, nil
}

// keepGone remembers those of some changes after which nothing is known of a consumer: a store that
// was emptied has no change that says so, and an older state of it, with the consumer's record, may
// still come back.
func (s *Service) keepGone(changes []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		switch {
		case c.Revision < s.gone[c.Key]:
		case c.Record.Revision > 0:
			delete(s.gone, c.Key)
		case len(s.gone) < KeptChanges:
			s.gone[c.Key] = c.Revision
		}
	}
}

// forgive leaves out what has been overtaken in the store.
func (s *Service) forgive(ctx context.Context) error {
	log, err := s.logAfterLoss(ctx)
	if err != nil {
		return err
	}
	known := make(map[keyhash.Key]uint64, len(log.Changes))
	for _, c := range log.Changes {
		known[c.Key] = c.Revision
	}
	s.owed = slices.DeleteFunc(s.owed, func(c Change) bool {
		return known[c.Key] > c.Revision || known[c.Key] == c.Revision && !s.loss.part
	})
	return nil
}

// acknowledged notes a change that this replica has made. What the log does not have by now is owed
// to the store: another server may have taken its place, which has not heard of the change.
func (s *Service) acknowledged(revision uint64, writes []Write) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log.Floor >= revision {
		return // So many changes came after it that the log lists it no more.
	}
	seen := make(map[keyhash.Key]uint64, len(s.log.Changes))
	for _, c := range s.log.Changes {
		seen[c.Key] = c.Revision
	}
	for _, w := range writes {
		if seen[w.Key] >= revision {
			continue
		}
		c := Change{Revision: revision, Key: w.Key}
		if w.Record != nil {
			c.Record = *w.Record
			c.Record.Revision = revision
		}
		s.owed = append(s.owed, c)
	}
}

// giveBack stores changes that the store has lost. If it has lost a part, a record that it has must
// be listed anew.
func (s *Service) giveBack(ctx context.Context, changes []Change) error {
	keys := make([]keyhash.Key, len(changes))
	for i := range changes {
		keys[i] = changes[i].Key
	}
	records, _, err := s.store.Consumers(ctx, keys)
	if err != nil {
		return err
	}
	var writes []Write
	bans := 0
	for i, c := range changes {
		has := records[i].Revision
		w := Write{Key: c.Key, Expected: has}
		if c.Record.Revision > 0 {
			w.Record = &c.Record
		}
		if has > c.Revision || has == c.Revision && !s.loss.part || w.Record == nil && has == 0 {
			continue
		}
		if !c.Record.Banned.Ends(s.now()) {
			bans++
		}
		writes = append(writes, w)
	}
	if len(writes) == 0 {
		return nil
	}
	revision, err := s.store.WriteConsumers(ctx,
		Changes{Writes: writes, ExceptionsRevision: s.ExceptionsRevision(), Entry: audit.Entry{
			Action: "consumers.restore", Resource: "consumers", Reason: "the store had lost them",
			After: audit.Value(map[string]int{"consumers": len(writes), "bans": bans})}})
	if err != nil {
		return err
	}
	s.loss.given += len(writes)
	s.loss.bans += bans
	s.loss.last = Change{Revision: revision, Key: writes[len(writes)-1].Key}
	return nil
}
