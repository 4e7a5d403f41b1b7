package penalties

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// Refresh reads the latest changes if there are new ones. If the store has lost changes, it gets
// those back that this replica holds. It ends what nodes of a version began whose rollout has
// ended.
func (s *Service) Refresh(ctx context.Context) error { return s.refresh(ctx, nil) }

// Follow is Refresh, unless this replica holds what the store has by a poll: the changes up to that
// head, nil if the poll could not read it. What other replicas are too busy for waits for the next
// poll: the store answers.
func (s *Service) Follow(ctx context.Context, head *docs.Head) error {
	err := s.refresh(ctx, head)
	if errors.Is(err, errBusy) {
		return nil
	}
	return err
}

func (s *Service) refresh(ctx context.Context, head *docs.Head) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	if err := s.follow(ctx, head); err != nil {
		return err
	}
	return s.settle(ctx)
}

func (s *Service) follow(ctx context.Context, polled *docs.Head) error {
	now := s.Now()
	if e := s.note(now); e.Action != "" {
		if err := s.kept.Note(ctx, e); err != nil {
			return err
		}
	}
	s.sweep(now)
	s.mu.Lock()
	held, loaded := s.state, s.loaded
	s.mu.Unlock()
	if polled != nil && loaded && *polled == held {
		return nil
	}
	for anew, more := held.Revision == 0, true; more; {
		var some []Record
		var head docs.Head
		var err error
		some, head, more, err = s.kept.Since(ctx, held.Revision, pageSize)
		if err != nil {
			return err
		}
		if loaded && head == held {
			return nil
		}
		if loaded && held.Revision > 0 && (head.First != held.First || head.Revision < held.Revision) {
			if err := s.giveBack(ctx, now); err != nil {
				return err
			}
			held, loaded, anew, more = docs.Head{}, false, true, true
			continue
		}
		s.take(some, head, more, anew)
		held, loaded, anew = head, false, false
	}
	return nil
}

// take applies a page of changes up to a head. Anew: it is the first of all.
func (s *Service) take(some []Record, head docs.Head, more, anew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if anew || head.Cleared > s.state.Cleared {
		for _, r := range s.records {
			if anew || r.Revision < head.Cleared {
				s.drop(r)
			}
		}
	}
	if anew {
		s.order = s.order[:0]
	}
	for i := range some {
		r := some[i]
		s.put(&r)
		s.order = append(s.order, place{r.Revision, r.Key})
	}
	s.state = head
	if more {
		return
	}
	s.loaded = true
	if len(s.order) > 2*len(s.records)+pageSize {
		s.order = slices.DeleteFunc(s.order, s.outdated)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// put holds a record in place of another of its key. The caller holds the lock.
func (s *Service) put(r *Record) {
	if held := s.records[r.Key]; held != nil {
		s.drop(held)
	}
	s.records[r.Key] = r
	if r.Version == 0 || r.Level == 0 {
		return
	}
	if s.drafts[r.Version] == nil {
		s.drafts[r.Version] = map[keyhash.Key]bool{}
	}
	s.drafts[r.Version][r.Key] = true
}

// drop forgets a record. The caller holds the lock.
func (s *Service) drop(r *Record) {
	delete(s.records, r.Key)
	delete(s.drafts[r.Version], r.Key)
	if len(s.drafts[r.Version]) == 0 {
		delete(s.drafts, r.Version)
	}
}

// outdated reports whether a record has changed since. The caller holds the lock.
func (s *Service) outdated(p place) bool {
	r := s.records[p.key]
	return r == nil || r.Revision != p.revision
}

// sweep drops what is forgotten.
func (s *Service) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for _, r := range s.records {
		if r.Forgotten <= now.UnixMilli() {
			s.drop(r)
		}
	}
	s.order = slices.DeleteFunc(s.order, s.outdated)
}

// giveBack offers a store that has lost changes what this replica holds. What the store has of a
// caller by now stays if it ends later.
func (s *Service) giveBack(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	var all []Known
	for _, r := range s.records {
		if r.Level > 0 && r.Forgotten > now.UnixMilli() {
			all = append(all, Known{Record: *r, At: Everything})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b Known) int { return keyOrder(a.Key, b.Key) })
	for chunk := range slices.Chunk(all, pageSize) {
		if _, err := s.kept.Offer(ctx, chunk); err != nil {
			return err
		}
	}
	s.Log.Warn("the store had lost penalties; it has those back that this replica knew", "penalties", len(all))
	s.Lost()
	return nil
}

func keyOrder(a, b keyhash.Key) int { return slices.Compare(a[:], b[:]) }
