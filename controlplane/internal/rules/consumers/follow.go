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

// Refresh reads the latest changes if there are new ones. If the store has lost changes, it gets
// those back that this replica holds.
func (s *Service) Refresh(ctx context.Context) error {
	return s.Follow(ctx, nil)
}

// Follow is Refresh, unless this replica holds what the store has by a poll: the changes up to its
// head, nil if the poll could not read it.
func (s *Service) Follow(ctx context.Context, head *docs.Head) (err error) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	s.mu.Lock()
	held := s.log
	current := head != nil && s.loaded && held.Revision == head.Revision && len(s.owed) == 0 && s.loss == nil
	s.mu.Unlock()
	if current {
		err = s.examine(ctx, held)
	} else {
		err = s.meet(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering.Note(err, s.now())
	return err
}

func (s *Service) meet(ctx context.Context) error {
	if len(s.owed) > 0 || s.loss != nil {
		if err := s.repay(ctx); err != nil {
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
		return s.examine(ctx, held)
	case loaded && log.Revision < held.Revision, !log.follows(held):
		return s.regain(ctx, held, false)
	}
	log.Changes = slices.DeleteFunc(log.Changes, func(c Change) bool { return c.Revision <= held.Revision })
	return s.take(ctx, log, held.Revision, !loaded || held.Revision < log.Floor && !(log.Whole && held.Revision == 0))
}

// take applies a log of the changes after a revision. Gap: other changes may be missing from the
// log.
func (s *Service) take(ctx context.Context, log Log, after uint64, gap bool) (err error) {
	bans, whole := maps.Clone(s.bans), s.bansWhole
	if gap {
		bans, err = s.loadBans(ctx)
		if err != nil {
			return err
		}
		whole = len(bans) < maxBans
	}
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
	s.advance(log, after, gap, bans)
	s.bansWhole = whole
	return nil
}

func (s *Service) loadBans(ctx context.Context) (map[keyhash.Key]Record, error) {
	list, err := s.store.BannedConsumers(ctx, maxBans)
	bans := make(map[keyhash.Key]Record, len(list))
	for _, one := range list {
		bans[one.Key] = one.Record
	}
	return bans, err
}

// advance replaces what is known by a log of the changes after a revision.
func (s *Service) advance(log Log, after uint64, gap bool, bans map[keyhash.Key]Record) {
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

// Revision is that of the last change of a consumer that this replica has seen; 0 for none.
func (s *Service) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Revision
}

// ExceptionsRevision returns the highest one that this replica has seen.
func (s *Service) ExceptionsRevision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.ExceptionsRevision
}

// Exceptions reports whether any consumer has more than a tier, and the highest revision of what
// they have that this replica has seen.
func (s *Service) Exceptions() (some bool, revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Special, s.log.ExceptionsRevision
}

// After returns the changes since a node's revision, false if there are none, and a channel that is
// closed when there are. A node may be ahead because another replica sent it a change, or because
// the store went back; it is overruled only after it has waited. After never asks the store.
func (s *Service) After(revision uint64, waited bool) (m wire.Consumers, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := revision > s.log.Revision
	patient := waited && s.answering.Settled(s.now())
	if !s.loaded || revision == s.log.Revision || ahead && !patient {
		return m, false, s.changed
	}
	m = wire.Consumers{
		Revision: s.log.Revision, ExceptionsRevision: s.log.ExceptionsRevision,
		HasExceptions: s.log.Special,
	}
	missed := revision < s.log.Floor && (revision > 0 || !s.log.Whole) || revision > 0 && revision < s.since
	if ahead || missed {
		m.Items = s.foremost()
		return m, true, s.changed
	}
	m.Complete = true
	for i := range s.log.Changes {
		if c := &s.log.Changes[i]; c.Revision > revision {
			m.Items = append(m.Items, s.message(c.Key, &c.Record))
		}
	}
	return m, true, s.changed
}

// endingLast returns the keys of the bans that end last, as many as a message holds.
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

// foremost are the bans that end last, as many as a message holds. The lock is held.
func (s *Service) foremost() []wire.Consumer {
	if s.front == nil { // Once for all nodes, because lease requests wait for the lock.
		s.front = endingLast(s.bans)
	}
	items := make([]wire.Consumer, len(s.front))
	for i, key := range s.front {
		r := s.bans[key]
		items[i] = s.message(key, &r)
	}
	return items
}

// maxRemembered bounds the records kept in memory for Known.
const maxRemembered = 20_000

// Knowledge is a consumer's record as of a revision of the exceptions: later changes have a higher
// one.
type Knowledge struct {
	Record
	ExceptionsRevision uint64
}

// Known returns the records of consumers. It asks the store only for those that it has not read
// lately.
func (s *Service) Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]Knowledge, error) {
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
