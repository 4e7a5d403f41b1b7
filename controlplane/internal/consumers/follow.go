package consumers

import (
	"context"
	"maps"
	"slices"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Refresh reads the latest changes if there are new ones. A store that has lost changes gets back
// what this replica knows of them.
func (s *Service) Refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	err := s.meet(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering.Note(err, s.now())
	return err
}

func (s *Service) meet(ctx context.Context) error {
	revision, err := s.store.ConsumerRevision(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	held, loaded := s.log, s.loaded
	s.mu.Unlock()
	switch {
	case loaded && held.Revision == revision:
		return nil
	case loaded && revision < held.Revision:
		return s.regain(ctx, held, revision)
	}
	log, err := s.store.ConsumerLog(ctx, max(held.Revision, 1)-1)
	if err != nil {
		return err
	}
	if !log.follows(held) {
		return s.regain(ctx, held, revision)
	}
	log.Changes = slices.DeleteFunc(log.Changes, func(c Change) bool { return c.Revision <= held.Revision })
	return s.take(ctx, log, held.Revision, !loaded || held.Revision < log.Floor && !(log.Whole && held.Revision == 0))
}

// take takes in a log of the changes after a revision. Gap: it may not be all that has changed
// since.
func (s *Service) take(ctx context.Context, log Log, after uint64, gap bool) (err error) {
	bans := maps.Clone(s.bans)
	if gap {
		if bans, err = s.loadBans(ctx); err != nil {
			return err
		}
	}
	for _, c := range log.Changes {
		delete(bans, c.Key)
		if !c.Record.Banned.Ends(s.now()) && len(bans) < wire.MaxConsumers {
			bans[c.Key] = c.Record
		}
	}
	s.advance(log, after, gap, bans)
	return nil
}

func (s *Service) loadBans(ctx context.Context) (map[keyhash.Key]Record, error) {
	list, err := s.store.BannedConsumers(ctx, wire.MaxConsumers)
	bans := make(map[keyhash.Key]Record, len(list))
	for _, one := range list {
		bans[one.Key] = one.Record
	}
	return bans, err
}

// advance takes in a log of the changes after a revision.
func (s *Service) advance(log Log, after uint64, gap bool, bans map[keyhash.Key]Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bans = bans
	again := make(map[keyhash.Key]bool, len(log.Changes))
	for _, c := range log.Changes {
		again[c.Key] = true
		delete(s.remembered, c.Key)
	}
	if gap {
		clear(s.remembered)
	}
	if after > 0 {
		log.Changes = append(slices.DeleteFunc(slices.Clone(s.log.Changes), func(c Change) bool {
			return again[c.Key] || c.Revision <= log.Floor
		}), log.Changes...)
	}
	log.Turn = max(log.Turn, s.log.Turn)
	s.log, s.loaded = log, true
	close(s.changed)
	s.changed = make(chan struct{})
}

// Turn is the highest that this replica has seen.
func (s *Service) Turn() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Turn
}

// After returns what has changed since a node's revision, false if nothing has, and a channel that
// is closed when something does. A node that is ahead has heard from another replica, or the store
// went back: it is overruled only if it has waited for that. After never asks the store.
func (s *Service) After(revision uint64, waited bool) (m wire.Consumers, news bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := revision > s.log.Revision
	patient := waited && s.answering.Settled(s.now())
	if !s.loaded || revision == s.log.Revision || ahead && !patient {
		return m, false, s.changed
	}
	m = wire.Consumers{Format: wire.ConsumersFormat, Revision: s.log.Revision, Turn: s.log.Turn, Special: s.log.Special}
	missed := revision < s.log.Floor && (revision > 0 || !s.log.Whole) || revision > 0 && revision < s.since
	if ahead || missed {
		for key, r := range s.bans {
			m.Items = append(m.Items, s.told(key, &r))
		}
		return m, true, s.changed
	}
	m.Complete = true
	for i := range s.log.Changes {
		if c := &s.log.Changes[i]; c.Revision > revision {
			m.Items = append(m.Items, s.told(c.Key, &c.Record))
		}
	}
	return m, true, s.changed
}

// maxRemembered bounds the records kept in memory for Known.
const maxRemembered = 20_000

// Knowledge is what is known of a consumer as of a turn: nothing that has changed since counts
// under that turn or a lower one.
type Knowledge struct {
	Record
	Turn uint64
}

// Known returns what is known of consumers. It asks the store only about those of whom it has not
// been asked lately.
func (s *Service) Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]Knowledge, error) {
	known := make(map[keyhash.Key]Knowledge, len(keys))
	var missing []keyhash.Key
	s.mu.Lock()
	turn := s.log.Turn
	for _, key := range keys {
		if r, ok := s.remembered[key]; ok {
			known[key] = Knowledge{r, turn}
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
		known[key] = Knowledge{found[i], max(turn, state.Turn)}
		if s.loaded && state.Revision == s.log.Revision {
			if len(s.remembered) >= maxRemembered {
				clear(s.remembered)
			}
			s.remembered[key] = found[i]
		}
	}
	return known, nil
}

// Spoken is a message in the newest format that a node reads. In the first there are tiers alone.
func Spoken(m wire.Consumers, format uint64) wire.Consumers {
	if format >= wire.ConsumersFormat {
		return m
	}
	if m.Format = 0; !m.Complete {
		m.Items = nil
	}
	return m
}
