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

// examineEvery is the interval of checks for losses while the store reports no change.
const examineEvery = time.Second

// restoredAtOnce bounds the changes given back in one write.
const restoredAtOnce = 500

// follows reports whether a store has all changes of held. l is the store's log from held.Revision
// on. A store that went back, and then forward before this replica looked, lacks the last change of
// held.
func (l Log) follows(held Log) bool {
	if !l.Whole && l.Floor >= held.Revision {
		return true // After more changes than the log has, the loss can no longer be seen.
	}
	for _, c := range held.Changes {
		there := func(other Change) bool { return other.Key == c.Key }
		if c.Revision == held.Revision && !slices.ContainsFunc(l.Changes, there) {
			return false
		}
	}
	return true
}

// missingChanges returns the changes and bans of this replica that the store lacks and that later
// changes have not replaced. The record of a ban counts as a change.
//
// gone are deleted consumers with the revisions of their deletion, if the log no longer lists the
// deletion.
func missingChanges(held Log, bans map[keyhash.Key]Record, gone map[keyhash.Key]uint64, stored Log) (lost []Change) {
	known := make(map[keyhash.Key]uint64, len(stored.Changes))
	for _, c := range stored.Changes {
		known[c.Key] = c.Revision
	}
	// add adds a change that the store lacks.
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

// examineStore checks from time to time that the store has all parts of this replica's records:
// eviction, or an operator, may delete one part and leave the other parts. In that case this
// replica gives its records back.
func (s *Service) examineStore(ctx context.Context, held Log) error {
	now := s.now()
	// Choose a ban and the latest record for the check.
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
	if !due || held.Revision == 0 { // Before the first change there is nothing to lose.
		return nil
	}
	for _, c := range slices.Backward(held.Changes) {
		if c.Record.Revision > 0 {
			known = append(known, c.Key)
			break
		}
	}
	// Check them.
	whole, err := s.storeIsWhole(ctx, held, known, banned)
	if err != nil || whole {
		return err
	}
	return s.regainChanges(ctx, held, true)
}

// storeIsWhole reports whether the store, at held.Revision, has the known records and their
// changes, and, if banned is true, a ban in each list.
func (s *Service) storeIsWhole(ctx context.Context, held Log, known []keyhash.Key, banned bool) (bool, error) {
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

// regainChanges gives a store that went back the changes of this replica; all of them if part is
// true, which means that the store lost only a part.
func (s *Service) regainChanges(ctx context.Context, held Log, part bool) error {
	log, err := s.store.ConsumerLog(ctx, 0)
	if err != nil {
		return err
	}
	found := &loss{whole: held.Whole && s.bansWhole, known: held.Revision, stored: log.Revision, part: part}
	if part {
		log = Log{}
	}
	s.mu.Lock()
	lost := missingChanges(held, s.bans, s.gone, log)
	s.mu.Unlock()
	s.owed = append(s.owed, lost...)
	s.loss = found
	return s.repayStore(ctx)
}

// loss is a loss of the store, with the records that were given back since.
type loss struct {
	// whole is true if this replica knew all changes.
	whole bool
	// known is the revision of this replica, stored the revision of the store at the loss.
	known, stored uint64
	// given is the number of consumers given back, bans the number of bans among them.
	given, bans int
	// part is true if the store still lists changes whose records it has lost: it must list them
	// again.
	part bool
	// last is the latest change that the store was seen to have since; zero for none.
	last Change
}

// errWentBack means that the store lost more while it was getting its losses back.
var errWentBack = errors.New("the store has lost more changes in the meantime")

// repayStore gives the store the owed changes: acknowledged or known changes that the store lacks.
// Changes that cannot be given back now stay owed. Afterwards nodes are informed that they may have
// missed changes. If the store goes back once more in the meantime, its state is compared with this
// replica's again.
func (s *Service) repayStore(ctx context.Context) error {
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
	return s.regainChanges(ctx, held, false)
}

// giveAll gives back all records, like repayStore, to a store that does not go back in the
// meantime.
func (s *Service) giveAll(ctx context.Context) error {
	if err := s.dropReplaced(ctx); err != nil {
		return err
	}
	// Give back the changes in chunks.
	for len(s.owed) > 0 {
		chunk := s.owed[:min(len(s.owed), restoredAtOnce)]
		err := s.giveBack(ctx, chunk)
		if errors.Is(err, errs.Conflict) || errors.Is(err, ErrNotFound) {
			continue // Another writer changed one of them first.
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
	// Read the store's log again, and inform the nodes.
	log, err := s.logAfterLoss(ctx)
	if err != nil {
		return err
	}
	s.keepGone(s.log.Changes)
	if err := s.takeLog(ctx, log, 0, true); err != nil {
		return err
	}
	s.mu.Lock()
	s.since = log.Revision
	s.mu.Unlock()
	s.sayLoss()
	return nil
}

// sayLoss logs the loss.
func (s *Service) sayLoss() {
	lost := *s.loss
	s.owed, s.loss = nil, nil
	said := "the store had lost changes of consumers; this replica has given back all of them"
	if !lost.whole {
		said = fmt.Sprintf("the store had lost changes of consumers; this replica has given back the changes "+
			"that it knew: the latest %d changes, and at most %d bans; import the rest again",
			KeptChanges, maxBans)
	}
	s.logger.Warn(said, "consumers", lost.given, "bans", lost.bans, "all", lost.whole,
		"known", lost.known, "stored", lost.stored)
	s.lost()
}

// logAfterLoss reads the log of a store that is getting its losses back.
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

// keepGone remembers deleted consumers from some changes: a store that was emptied has no change
// about them, and an older state of the store, with their records, may still come back.
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

// dropReplaced removes owed changes that later changes in the store have replaced.
func (s *Service) dropReplaced(ctx context.Context) error {
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

// noteWritten checks that the store still has a change that this replica has made. If the log
// lacks it, the change is owed to the store: another server without the change may have taken over.
func (s *Service) noteWritten(revision uint64, writes []Write) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log.Floor >= revision {
		return // Too many later changes: the log no longer lists it.
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

// giveBack stores changes that the store has lost. After the loss of a part, records that the store
// still has are written again too.
func (s *Service) giveBack(ctx context.Context, changes []Change) error {
	keys := make([]keyhash.Key, len(changes))
	for i := range changes {
		keys[i] = changes[i].Key
	}
	records, _, err := s.store.Consumers(ctx, keys)
	if err != nil {
		return err
	}
	// Leave out changes that the store has, or that later changes have replaced.
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
	// Write the other changes.
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
