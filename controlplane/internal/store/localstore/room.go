package localstore

import "time"

// warnEvery is the least time between two warnings that the store is full.
const warnEvery = time.Minute

// room bounds the number of ledgers of each kind in a shard, whose lock guards it.
type room struct {
	// max is the maximum number. refused counts the buckets that got no ledger.
	max     int
	refused int64
}

// lacks reports whether there is no room for a ledger more than these, and counts the refusal.
func (r *room) lacks(ledgers int) bool {
	if ledgers < r.max {
		return false
	}
	r.refused++
	return true
}

// Refused returns how often a bucket was granted nothing because the store was full.
func (s *Store) Refused() int64 {
	var all int64
	for i := range s.ledgers.shards {
		h := &s.ledgers.shards[i]
		h.mu.Lock()
		all += h.room.refused
		h.mu.Unlock()
	}
	return all
}

// warnIfFull warns that buckets were refused since the last warning, at most once in warnEvery.
func (s *Store) warnIfFull() {
	refused := s.Refused()
	s.mu.Lock()
	now, since := s.now(), refused-s.warned
	due := since > 0 && (s.warnedAt.IsZero() || now.Sub(s.warnedAt) >= warnEvery)
	if due {
		s.warned, s.warnedAt = refused, now
	}
	s.mu.Unlock()
	if due {
		s.log.Warn("the embedded store is full: new buckets are granted nothing until other buckets are "+
			"full again; use Redis, or fewer or shorter limits by caller", "bound", s.bound, "refused", since)
	}
}
