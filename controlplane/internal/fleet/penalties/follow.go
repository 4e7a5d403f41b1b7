package penalties

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// Refresh reads the latest changes. If the store has lost changes, this replica gives back the
// records that it has. It also ends penalties that nodes of a version began, once the rollout of
// that version has ended.
func (s *Service) Refresh(ctx context.Context) error { return s.refreshFrom(ctx, nil) }

// Follow reads the changes like Refresh, unless a poll shows that this replica already has them
// all. head is the store's head; nil if the poll could not read it. If other replicas are too busy,
// the next poll tries again: the store does answer.
func (s *Service) Follow(ctx context.Context, head *docs.Head) error {
	err := s.refreshFrom(ctx, head)
	if errors.Is(err, errBusy) {
		return nil
	}
	return err
}

func (s *Service) refreshFrom(ctx context.Context, head *docs.Head) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	if err := s.followStore(ctx, head); err != nil {
		return err
	}
	return s.settleRollouts(ctx)
}

func (s *Service) followStore(ctx context.Context, polled *docs.Head) error {
	// First the audit and the records whose time is over.
	now := s.Now()
	if e := s.dueEntry(now); e.Action != "" {
		if err := s.kept.Note(ctx, e); err != nil {
			return err
		}
	}
	s.sweepForgotten(now)
	s.mu.Lock()
	held, loaded := s.state, s.loaded
	s.mu.Unlock()
	if polled != nil && loaded && *polled == held {
		return nil
	}
	// Read the changes page by page. If the store has lost changes, give back the records and start
	// again.
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
		s.takePage(some, head, more, anew)
		held, loaded, anew = head, false, false
	}
	return nil
}

// takePage applies a page of changes up to a head. anew is true for the first page of all records.
func (s *Service) takePage(some []Record, head docs.Head, more, anew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if anew || head.Cleared > s.state.Cleared {
		for _, r := range s.records {
			if anew || r.Revision < head.Cleared {
				s.dropRecord(r)
			}
		}
	}
	if anew {
		s.order = s.order[:0]
	}
	for i := range some {
		r := some[i]
		s.putRecord(&r)
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

// putRecord stores a record in place of another record with its key. The caller holds the lock.
func (s *Service) putRecord(r *Record) {
	if held := s.records[r.Key]; held != nil {
		s.dropRecord(held)
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

// dropRecord removes a record. The caller holds the lock.
func (s *Service) dropRecord(r *Record) {
	delete(s.records, r.Key)
	delete(s.drafts[r.Version], r.Key)
	if len(s.drafts[r.Version]) == 0 {
		delete(s.drafts, r.Version)
	}
}

// outdated reports whether the record has changed after p. The caller holds the lock.
func (s *Service) outdated(p place) bool {
	r := s.records[p.key]
	return r == nil || r.Revision != p.revision
}

// sweepForgotten removes records whose level is forgotten.
func (s *Service) sweepForgotten(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for _, r := range s.records {
		if r.Forgotten <= now.UnixMilli() {
			s.dropRecord(r)
		}
	}
	s.order = slices.DeleteFunc(s.order, s.outdated)
}

// giveBack offers the records of this replica to a store that has lost changes. If the store has a
// penalty of a caller that ends later, that penalty stays.
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
	s.Log.Warn("the store had lost penalties; this replica has given back the penalties that it knew",
		"penalties", len(all))
	s.Lost()
	return nil
}

func keyOrder(a, b keyhash.Key) int { return slices.Compare(a[:], b[:]) }
