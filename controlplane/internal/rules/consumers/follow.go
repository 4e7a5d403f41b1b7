package consumers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Refresh reads the latest changes. If the store has lost changes, this replica gives back the
// changes that it has.
func (s *Service) Refresh(ctx context.Context) error {
	return s.Follow(ctx, nil)
}

// Follow reads the changes like Refresh, unless a poll shows that this replica already has all
// changes: then it only checks whether the store has lost some. head is the store's head; nil if
// the poll could not read it.
func (s *Service) Follow(ctx context.Context, head *docs.Head) (err error) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	s.mu.Lock()
	held := s.log
	current := head != nil && s.loaded && held.Revision == head.Revision && len(s.owed) == 0 && s.loss == nil
	s.mu.Unlock()
	// Without new changes only check for losses.
	if current {
		err = s.examineStore(ctx, held)
	} else {
		err = s.readChanges(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering.Note(err, s.now())
	return err
}

// readChanges reads the latest changes. If the store has lost changes, it gives back the changes of
// this replica.
func (s *Service) readChanges(ctx context.Context) error {
	if len(s.owed) > 0 || s.loss != nil {
		if err := s.repayStore(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	held, loaded := s.log, s.loaded
	s.mu.Unlock()
	log, err := s.store.ConsumerLog(ctx, max(held.Revision, 1)-1)
	switch {
	case err != nil:
		return err
	case loaded && log.Revision == held.Revision:
		return s.examineStore(ctx, held)
	case loaded && log.Revision < held.Revision, !log.follows(held):
		return s.regainChanges(ctx, held, false)
	}
	log.Changes = slices.DeleteFunc(log.Changes, func(c Change) bool { return c.Revision <= held.Revision })
	gap := held.Revision < log.Floor && !(log.Whole && held.Revision == 0)
	return s.takeLog(ctx, log, held.Revision, !loaded || gap)
}

// takeLog applies a log of the changes after a revision, and updates the bans. gap is true if
// changes may be missing in the log: then it reads all bans from the store.
func (s *Service) takeLog(ctx context.Context, log Log, after uint64, gap bool) (err error) {
	bans, whole := maps.Clone(s.bans), s.bansWhole
	if gap {
		bans, err = s.loadBans(ctx)
		if err != nil {
			return err
		}
		whole = len(bans) < maxBans
	}
	// Update the bans.
	for _, c := range log.Changes {
		delete(bans, c.Key)
		switch {
		case c.Record.Banned.Ends(s.now()):
		case len(bans) >= maxBans:
			whole = false
		default:
			bans[c.Key] = c.Record
		}
	}
	s.advanceTo(log, after, gap, bans)
	s.bansWhole = whole
	return nil
}

// loadBans reads the bans from the store, at most maxBans.
func (s *Service) loadBans(ctx context.Context) (map[keyhash.Key]Record, error) {
	list, err := s.store.BannedConsumers(ctx, maxBans)
	bans := make(map[keyhash.Key]Record, len(list))
	for _, one := range list {
		bans[one.Key] = one.Record
	}
	return bans, err
}

// advanceTo applies a log of the changes after a revision to the state of this replica.
func (s *Service) advanceTo(log Log, after uint64, gap bool, bans map[keyhash.Key]Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bans, s.front = bans, nil
	again := make(map[keyhash.Key]bool, len(log.Changes))
	for _, c := range log.Changes {
		again[c.Key] = true
		delete(s.remembered, c.Key)
		if c.Revision > s.gone[c.Key] {
			delete(s.gone, c.Key)
		}
	}
	if gap {
		clear(s.remembered)
	}
	if after > 0 {
		log.Changes = append(slices.DeleteFunc(slices.Clone(s.log.Changes), func(c Change) bool {
			return again[c.Key] || c.Revision <= log.Floor
		}), log.Changes...)
	}
	log.ExceptionsRevision = max(log.ExceptionsRevision, s.log.ExceptionsRevision)
	s.log, s.loaded = log, true
	close(s.changed)
	s.changed = make(chan struct{})
}

// Revision returns the revision of the last change that this replica has seen; 0 for none.
func (s *Service) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Revision
}

// ExceptionsRevision returns the highest revision of exceptions that this replica has seen.
func (s *Service) ExceptionsRevision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.ExceptionsRevision
}

// Exceptions reports whether any consumer has more than a tier, and the highest revision of
// exceptions that this replica has seen.
func (s *Service) Exceptions() (some bool, revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Special, s.log.ExceptionsRevision
}

// After returns the changes since a node's revision, and a channel that is closed at the next
// change. news is false if there are none. A node may be ahead because another replica sent it a
// change, or because the store went back. Only a node that has waited is corrected. After never
// reads the store.
func (s *Service) After(revision uint64, waited bool) (m wire.Consumers, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := revision > s.log.Revision
	patient := waited && s.answering.Settled(s.now())
	if !s.loaded || revision == s.log.Revision || ahead && !patient {
		return m, false, s.changed
	}
	// The node may have missed changes: it gets the bans, and asks again for the rest.
	m = wire.Consumers{
		Revision: s.log.Revision, ExceptionsRevision: s.log.ExceptionsRevision,
		HasExceptions: s.log.Special,
	}
	missed := revision < s.log.Floor && (revision > 0 || !s.log.Whole) || revision > 0 && revision < s.since
	if ahead || missed {
		m.Items = s.foremostBans()
		return m, true, s.changed
	}
	m.Complete = true
	for i := range s.log.Changes {
		if c := &s.log.Changes[i]; c.Revision > revision {
			m.Items = append(m.Items, s.messageOf(c.Key, &c.Record))
		}
	}
	return m, true, s.changed
}

// endingLast returns the keys of the bans that end last, at most wire.MaxConsumers.
func endingLast(bans map[keyhash.Key]Record) []keyhash.Key {
	keys := slices.Collect(maps.Keys(bans))
	if len(keys) <= wire.MaxConsumers {
		return keys
	}
	var always time.Time
	end := func(key keyhash.Key) int64 {
		r := bans[key]
		return r.Banned.end(always)
	}
	slices.SortFunc(keys, func(a, b keyhash.Key) int { return cmp.Compare(end(b), end(a)) })
	return keys[:wire.MaxConsumers]
}

// foremostBans returns the bans that end last, at most wire.MaxConsumers. The lock is held.
func (s *Service) foremostBans() []wire.Consumer {
	if s.front == nil { // Computed once for all nodes, because lease requests wait for the lock.
		s.front = endingLast(s.bans)
	}
	items := make([]wire.Consumer, len(s.front))
	for i, key := range s.front {
		r := s.bans[key]
		items[i] = s.messageOf(key, &r)
	}
	return items
}

// maxRemembered bounds the records in memory for Known.
const maxRemembered = 20_000

// Knowledge is a consumer's record as of a revision of the exceptions: later changes have a higher
// revision.
type Knowledge struct {
	Record
	ExceptionsRevision uint64
}

// Known returns the records of consumers. It reads from the store only the records that it has not
// read lately.
func (s *Service) Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]Knowledge, error) {
	// Use the records in memory.
	known := make(map[keyhash.Key]Knowledge, len(keys))
	var missing []keyhash.Key
	s.mu.Lock()
	exceptionsRevision := s.log.ExceptionsRevision
	for _, key := range keys {
		if r, ok := s.remembered[key]; ok {
			known[key] = Knowledge{r, exceptionsRevision}
		} else if !slices.Contains(missing, key) {
			missing = append(missing, key)
		}
	}
	s.mu.Unlock()
	if len(missing) == 0 {
		return known, nil
	}
	// Read the other records, and remember them if they are current.
	found, state, err := s.store.Consumers(ctx, missing)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range missing {
		known[key] = Knowledge{found[i], max(exceptionsRevision, state.ExceptionsRevision)}
		if s.loaded && state.Revision == s.log.Revision {
			if len(s.remembered) >= maxRemembered {
				clear(s.remembered)
			}
			s.remembered[key] = found[i]
		}
	}
	return known, nil
}
