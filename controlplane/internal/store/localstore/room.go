package localstore

import "time"

// warnEvery is how often a store that is full says so in the log.
const warnEvery = time.Minute

// room bounds the ledgers of each kind in a shard, whose lock guards it.
type room struct {
	// max is how many there may be. refused is how often a bucket had to go without one.
	max     int
	refused int64
}

// lacks reports whether there is no room beside that many ledgers, and counts it.
func (r *room) lacks(ledgers int) bool {
	if ledgers < r.max {
		return false
	}
	r.refused++
	return true
}

// Refused returns how often a bucket was granted nothing because the store has as many as it may
// have.
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

// warnIfFull logs that buckets were refused since it last did, once in warnEvery.
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
		s.log.Warn("the embedded store is full: buckets that it does not have are granted nothing until others are "+
			"full again; use Redis, or fewer or shorter limits by caller", "bound", s.bound, "refused", since)
	}
}
